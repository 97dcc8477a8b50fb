package enginesim_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"kvgate/integration/enginesim"
)

func TestFleetServesTurnsThroughItsRouter(t *testing.T) {
	f, err := enginesim.StartFleet(enginesim.FleetConfig{
		Count: 2, RouterListen: "127.0.0.1:0", Engine: enginesim.Config{Speed: 100, SessionRadix: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for range 3 {
		body := `{"session_id":"s","stream":true,"messages":[{"role":"user","content":"a question that is long enough to cache"}]}`
		resp, err := client.Post(f.RouterURL()+"/v1/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		last := ""
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			if lines.Text() != "" {
				last = lines.Text()
			}
		}
		_ = resp.Body.Close()
		equal(t, "last line", last, "data: [DONE]")
	}
	one, two := f.Engines[0].Stats(), f.Engines[1].Stats()
	equal(t, "turns on one engine", max(one.Completed, two.Completed), 3)
	equal(t, "turns on the other", min(one.Completed, two.Completed), 0)
	resp, err := client.Get(f.RouterURL() + "/workers")
	if err != nil {
		t.Fatal(err)
	}
	var l struct {
		Total int `json:"total"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&l); err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	equal(t, "workers", l.Total, len(f.URLs()))
}

func TestFleetThatCannotStartLeavesNothingBehind(t *testing.T) {
	for name, cfg := range map[string]enginesim.FleetConfig{
		"none":        {},
		"port":        {Count: 2, Listen: "127.0.0.1:x"},
		"address":     {Count: 2, Listen: "127.0.0.1"},
		"bad config":  {Count: 2, Engine: enginesim.Config{PageSize: 64}},
		"router":      {Count: 1, RouterListen: "127.0.0.1:0", Engine: enginesim.Config{}},
		"router addr": {Count: 1, RouterListen: "nowhere.invalid:x"},
	} {
		if name == "router" {
			cfg.Router.Style = "odd"
		}
		if _, err := enginesim.StartFleet(cfg); err == nil {
			t.Errorf("%s: started", name)
		}
	}
	if _, err := enginesim.StartFleet(enginesim.FleetConfig{}); !errors.Is(err, enginesim.ErrConfig) {
		t.Errorf("error %v, want ErrConfig", err)
	}
}
