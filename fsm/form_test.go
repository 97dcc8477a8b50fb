package fsm

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"kvgate/fsm/fsmpb"
	"kvgate/store"
)

// TestWhoJoinsAndWhoForms: a node without data joins when its peers have a history of which it was no part as
// it is now, whether or not their cluster has an id yet.
func TestWhoJoinsAndWhoForms(t *testing.T) {
	fresh := func(id string) *fsmpb.DescribeResponse {
		return &fsmpb.DescribeResponse{NodeId: id, Birth: "birth of " + id}
	}
	formed := func(id string, roster map[string]string) *fsmpb.DescribeResponse {
		d := fresh(id)
		d.HasState, d.Roster = true, roster
		return d
	}
	knows, knew := map[string]string{"n3": "now"}, map[string]string{"n3": "before"}
	cases := map[string]struct {
		peers   []*fsmpb.DescribeResponse
		missing int
		joins   bool // at once
		later   bool // after waiting for those that are missing
	}{
		"nobody has a history":            {peers: []*fsmpb.DescribeResponse{fresh("n1"), fresh("n2")}},
		"it was slow":                     {peers: []*fsmpb.DescribeResponse{formed("n1", knows), formed("n2", knows)}},
		"it was slow, one is slower":      {peers: []*fsmpb.DescribeResponse{formed("n1", knows), fresh("n2")}},
		"it was slow, one is missing":     {peers: []*fsmpb.DescribeResponse{formed("n1", knows)}, missing: 1, later: true},
		"it lost its data":                {peers: []*fsmpb.DescribeResponse{formed("n1", knew), formed("n2", knew)}, joins: true, later: true},
		"it lost its data in between":     {peers: []*fsmpb.DescribeResponse{formed("n1", knows), formed("n2", knew)}, joins: true, later: true},
		"it lost its data, one is slow":   {peers: []*fsmpb.DescribeResponse{formed("n1", knew), fresh("n2")}, joins: true, later: true},
		"it is new":                       {peers: []*fsmpb.DescribeResponse{formed("n1", nil)}, missing: 1, joins: true, later: true},
		"it is new, nobody has a history": {peers: []*fsmpb.DescribeResponse{fresh("n1")}, missing: 1},
	}
	for name, c := range cases {
		m := meeting{births: map[string]string{}, missing: make([]string, c.missing)}
		for _, d := range c.peers {
			m.hear("n3", "now", "address", d)
			if m.births[d.NodeId] != d.Birth {
				t.Errorf("%s: births are %v", name, m.births)
			}
		}
		if now, later := m.joins(0), m.joins(2*waitForMissing); now != c.joins || later != c.later {
			t.Errorf("%s: joins at once %t, later %t, want %t, %t", name, now, later, c.joins, c.later)
		}
	}
}

// TestSlowNodeFormsTheClusterLate: it has never voted, so it is a voter from the start and need not join.
func TestSlowNodeFormsTheClusterLate(t *testing.T) {
	c := startCluster(t)
	c.budget(100)
	slow := c.followers()[0]
	id := slow.opts.NodeID
	info := slow.disk.dir.Node()
	c.lose(slow)
	admit(t, c.leader().Replica, ask("a", 10))
	// What the directory of a node holds that has not got round to forming the cluster.
	data, err := json.Marshal(store.NodeInfo{FormatVersion: info.FormatVersion, NodeID: id, Birth: info.Birth})
	must(t, err)
	must(t, os.MkdirAll(slow.opts.DataDir, 0o700))
	must(t, os.WriteFile(filepath.Join(slow.opts.DataDir, "node.json"), data, 0o600))
	slow.open(t)
	c.ready()
	c.waitSuffrages(id, "[voter]")
	c.hashesAgree()
}
