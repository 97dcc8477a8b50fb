// Package deploy tests what deploy/ offers for running kvgate: that every file is read by the library of the program it
// is for, that flags, variables, keys, metrics and labels named there exist, that each alert fires when it should,
// and that three nodes started with the very arguments of the unit, of compose.yaml and of the manifests form a cluster.
//
// It also makes deploy/grafana/kvgate.json: `go test ./integration/deploy -run TestDashboard -rewrite` writes it anew.
//
// Nothing here needs Docker, Kubernetes, a Prometheus or a Grafana. The readers are built from the module in tools/,
// which has its own go.mod.
package deploy
