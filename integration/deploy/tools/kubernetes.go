package main

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// kinds are those that deploy/ may use.
var kinds = map[string]func() any{
	"apps/v1 StatefulSet":                func() any { return &appsv1.StatefulSet{} },
	"batch/v1 CronJob":                   func() any { return &batchv1.CronJob{} },
	"networking.k8s.io/v1 NetworkPolicy": func() any { return &networkingv1.NetworkPolicy{} },
	"policy/v1 PodDisruptionBudget":      func() any { return &policyv1.PodDisruptionBudget{} },
	"v1 ConfigMap":                       func() any { return &corev1.ConfigMap{} },
	"v1 PersistentVolumeClaim":           func() any { return &corev1.PersistentVolumeClaim{} },
	"v1 Service":                         func() any { return &corev1.Service{} },
	"v1 ServiceAccount":                  func() any { return &corev1.ServiceAccount{} },
}

// kubernetes builds a kustomization. A field that the API does not have is an error, as with kubectl apply.
func kubernetes(dir string) ([]any, error) {
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, err
	}
	var objects []any
	for _, resource := range built.Resources() {
		kind := resource.GetApiVersion() + " " + resource.GetKind()
		make, ok := kinds[kind]
		if !ok {
			return nil, fmt.Errorf("%s %s: a kind that is not known here", kind, resource.GetName())
		}
		text, err := resource.AsYAML()
		if err != nil {
			return nil, err
		}
		object := make()
		if err := yaml.UnmarshalStrict(text, object); err != nil {
			return nil, fmt.Errorf("%s %s: %w", kind, resource.GetName(), err)
		}
		objects = append(objects, object)
	}
	return objects, nil
}
