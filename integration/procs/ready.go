package procs

import (
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"
)

const pollEvery = 20 * time.Millisecond

// Get asks a node for a path on a connection of its own and returns the status and the body.
func Get(url string) (status int, body string, err error) {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	return res.StatusCode, string(data), err
}

// WaitReady waits until the node at the base URL says that it has a leader and has caught up.
func WaitReady(t testing.TB, url string) {
	t.Helper()
	said := ""
	Eventually(t, startTimeout, func() bool {
		status, body, err := Get(url + "/readyz")
		said = fmt.Sprint(status, " ", body, err)
		return err == nil && status == http.StatusOK
	}, func() string { return url + " is not ready: " + said })
}

// Eventually polls until ok answers true, and fails the test with why() after the limit.
func Eventually(t testing.TB, limit time.Duration, ok func() bool, why func() string) {
	t.Helper()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	deadline := time.After(limit)
	for !ok() {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("after %v: %s", limit, why())
		}
	}
}

// waitServing waits until the API answers, and fails when the process ends first.
func (p *Process) waitServing() {
	p.t.Helper()
	Eventually(p.t, startTimeout, func() bool {
		select {
		case <-p.Done():
			p.t.Fatalf("node %s ended instead of serving: %v", p.node.ID, p.current().err)
		default:
		}
		_, _, err := Get(p.URL() + "/healthz")
		return err == nil
	}, func() string { return fmt.Sprintf("node %s does not listen on %s", p.node.ID, p.URL()) })
}
