package deploy

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

// object of Kubernetes, as far as the tests look at it.
type kubeObject struct {
	Kind     string
	Metadata struct{ Name string }
	Data     map[string]string
	Spec     struct {
		ClusterIP                string
		PublishNotReadyAddresses bool
		Selector                 any
		MaxUnavailable           int
		ServiceName              string
		Replicas                 int
		PodManagementPolicy      string
		Template                 struct{ Spec podSpec }
		JobTemplate              struct {
			Spec struct {
				Template struct{ Spec podSpec }
			}
		}
	}
}

type podSpec struct {
	TerminationGracePeriodSeconds int
	EnableServiceLinks            *bool
	Containers                    []struct {
		Args           []string
		Env            []envVar
		StartupProbe   probe
		LivenessProbe  probe
		ReadinessProbe probe
		Lifecycle      struct {
			PreStop struct{ Sleep struct{ Seconds int } }
		}
	}
}

type envVar struct {
	Name, Value string
	ValueFrom   struct{ FieldRef struct{ FieldPath string } }
}

type probe struct {
	HTTPGet struct {
		Path, Port, Scheme string
	}
}

type kubeObjects []kubeObject

func kubernetes(t *testing.T, dir string) kubeObjects {
	t.Helper()
	var all kubeObjects
	understand(t, &all, "kubernetes", "kubernetes/"+dir)
	return all
}

// find returns the object of a kind whose name is name or, from a generator, begins with it.
func (all kubeObjects) find(t *testing.T, kind, name string) kubeObject {
	t.Helper()
	for _, o := range all {
		if o.Kind == kind && (o.Metadata.Name == name || kind == "ConfigMap" && strings.HasPrefix(o.Metadata.Name, name+"-")) {
			return o
		}
	}
	t.Fatalf("there is no %s %s", kind, name)
	return kubeObject{}
}

var reference = regexp.MustCompile(`\$\(([A-Z_]+)\)`)

// environment resolves a container's variables as the kubelet does.
func environment(vars []envVar, fields map[string]string) map[string]string {
	env := map[string]string{}
	for _, v := range vars {
		value := v.Value
		if path := v.ValueFrom.FieldRef.FieldPath; path != "" {
			value = fields[path]
		}
		env[v.Name] = resolve(value, env)
	}
	return env
}

// resolve replaces $(NAME) by what is known so far, and leaves what is not, as the kubelet does.
func resolve(text string, env map[string]string) string {
	return reference.ReplaceAllStringFunc(text, func(ref string) string {
		if known, ok := env[ref[2:len(ref)-1]]; ok {
			return known
		}
		return ref
	})
}

func (all kubeObjects) plans(t *testing.T) (plans []plan) {
	t.Helper()
	set := all.find(t, "StatefulSet", "kvgate")
	container := set.Spec.Template.Spec.Containers[0]
	for i := range set.Spec.Replicas {
		id := fmt.Sprintf("%s-%d", set.Metadata.Name, i)
		env := environment(container.Env, map[string]string{"metadata.name": id, "metadata.namespace": "rollouts"})
		var argv []string
		for _, arg := range container.Args {
			argv = append(argv, resolve(arg, env))
		}
		plans = append(plans, plan{
			id: id, raft: env["KVGATE_RAFT_ADVERTISE"], argv: argv, env: env, config: all.find(t, "ConfigMap", "kvgate").Data["kvgate.yaml"],
		})
	}
	return plans
}

func TestKubernetesObjects(t *testing.T) {
	all := kubernetes(t, "base")
	set := all.find(t, "StatefulSet", "kvgate").Spec
	peers := all.find(t, "Service", set.ServiceName).Spec
	if peers.ClusterIP != "None" || !peers.PublishNotReadyAddresses {
		t.Errorf("the nodes' Service is %+v: without addresses of pods that are not ready no cluster forms", peers)
	}
	if set.Replicas != 3 || set.PodManagementPolicy != "Parallel" {
		t.Errorf("%d pods start %s: one after the other they wait for each other for ever", set.Replicas, set.PodManagementPolicy)
	}
	if got := all.find(t, "PodDisruptionBudget", "kvgate").Spec.MaxUnavailable; got != 1 {
		t.Errorf("a drain may take %d nodes", got)
	}
	pod := set.Template.Spec
	c := pod.Containers[0]
	for name, want := range map[string]struct{ got, want string }{
		"startup": {c.StartupProbe.HTTPGet.Path, "/healthz"}, "liveness": {c.LivenessProbe.HTTPGet.Path, "/healthz"}, "readiness": {c.ReadinessProbe.HTTPGet.Path, "/readyz"},
	} {
		if want.got != want.want {
			t.Errorf("the %s probe asks for %s, want %s", name, want.got, want.want)
		}
	}
	grace, wait := time.Duration(pod.TerminationGracePeriodSeconds)*time.Second, time.Duration(c.Lifecycle.PreStop.Sleep.Seconds)*time.Second
	if wait == 0 || grace <= wait+stopTakes {
		t.Errorf("a pod has %v to end, of which preStop takes %v and the node %v", grace, wait, stopTakes)
	}
}

// Kubernetes gives a node its peers by the names of pods of the StatefulSet and its Service.
func TestKubernetesPeersAreThePods(t *testing.T) {
	plans := kubernetes(t, "base").plans(t)
	var want []string
	for _, p := range plans {
		want = append(want, p.id+"="+p.id+".kvgate-peers.rollouts.svc:7071")
	}
	for _, p := range plans {
		if got := p.env["KVGATE_PEERS"]; got != strings.Join(want, ",") {
			t.Errorf("%s has peers %s, want %s", p.id, got, strings.Join(want, ","))
		}
	}
}

func TestKubernetesNodesForm(t *testing.T) {
	c := start(t, kubernetes(t, "base").plans(t), "http://127.0.0.1:1", false, func(string) map[string]string { return nil })
	c.ready()
	job := kubernetes(t, "backup").find(t, "CronJob", "kvgate-backup").Spec.JobTemplate.Spec.Template.Spec.Containers[0]
	dir := t.TempDir()
	var args []string
	for _, arg := range job.Args {
		args = append(args, strings.NewReplacer("/backup", dir, "$(JOB_NAME)", "kvgate-backup-29000000").Replace(arg))
	}
	c.do(args...)
	if out := c.do("snapshot", "inspect", dir+"/kvgate-backup-29000000.kvgate"); !strings.Contains(out, "kvgate-2") {
		t.Errorf("the backup does not name the nodes:\n%s", out)
	}
	c.loseQuorum()
}

func TestKubernetesSecureNodesForm(t *testing.T) {
	all := kubernetes(t, "secure")
	for name, p := range map[string]probe{
		"liveness":  all.find(t, "StatefulSet", "kvgate").Spec.Template.Spec.Containers[0].LivenessProbe,
		"readiness": all.find(t, "StatefulSet", "kvgate").Spec.Template.Spec.Containers[0].ReadinessProbe,
	} {
		if p.HTTPGet.Scheme != "HTTPS" || p.HTTPGet.Path == "" {
			t.Errorf("the %s probe asks %+v", name, p.HTTPGet)
		}
	}
	dir, roots := certificates(t, "kvgate-0", "kvgate-1", "kvgate-2")
	c := start(t, all.plans(t), "http://127.0.0.1:1", true, func(id string) map[string]string {
		return map[string]string{
			"/etc/kvgate-tls/" + id + ".pem":     pem(t, dir, id+".pem"),
			"/etc/kvgate-tls/" + id + "-key.pem": pem(t, dir, id+"-key.pem"),
			"/etc/kvgate-tls/ca.pem":             pem(t, dir, "ca.pem"),
			"/etc/kvgate-tokens/tokens":          "s3cret admin\n",
		}
	})
	c.trust(dir, roots, "s3cret")
	c.ready()
	if status, _ := c.get(0, "/metrics"); status != 401 {
		t.Errorf("metrics without a token: %d, want 401", status)
	}
}
