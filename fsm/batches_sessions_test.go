package fsm

import (
	"fmt"
	"time"

	"pgregory.net/rapid"

	"kvgate/fsm/fsmpb"
	"kvgate/sessions"
)

func (g *batches) sessionID() string {
	return rapid.SampledFrom([]string{"s0", "s1", "s1", "s2", "s0", "s1", "s2", ""}).Draw(g.t, "session id")
}

func (g *batches) engine() string {
	return rapid.SampledFrom([]string{"http://e0:1", "http://e0:1", "http://e1:1@2", "http://E2:1/", "http://none:1", ""}).Draw(g.t, "engine")
}

func (g *batches) seconds(name string, most int) time.Duration {
	return time.Duration(rapid.IntRange(-1, most).Draw(g.t, name)) * time.Second
}

func (g *batches) session() *fsmpb.Op {
	pool, id := g.pool(), g.sessionID()
	switch rapid.IntRange(0, 6).Draw(g.t, "of session") {
	case 0, 1:
		return openOp(sessions.OpenRequest{
			Pool: pool, ID: id, Group: "g", Kind: sessions.Kind(rapid.IntRange(0, 4).Draw(g.t, "session kind")),
			IdleTimeout: g.seconds("idle", 30), Engine: g.engine(),
		})
	case 2:
		return &fsmpb.Op{Kind: &fsmpb.Op_TouchSession{TouchSession: &fsmpb.TouchSession{Pool: pool, Id: id}}}
	case 3:
		return bindOp(sessions.BindRequest{Pool: pool, ID: id, Engine: g.engine(), DPRank: 1, TTL: g.seconds("ttl", 30)})
	case 4:
		return &fsmpb.Op{Kind: &fsmpb.Op_CloseGroup{CloseGroup: &fsmpb.CloseGroup{
			Pool: pool, Group: rapid.SampledFrom([]string{"g", "none", ""}).Draw(g.t, "group"), Mode: uint32(rapid.IntRange(0, 3).Draw(g.t, "mode")),
		}}}
	}
	return closeOp(sessions.CloseRequest{
		Pool: pool, ID: id, Mode: sessions.Mode(rapid.IntRange(0, 3).Draw(g.t, "mode")), Timeout: g.seconds("timeout", 10),
	})
}

// closes reports what a closer would, mostly of work that there is.
func (g *batches) closes() *fsmpb.Op {
	var batch []sessions.Report
	g.machine.look(func(c *core) {
		for _, w := range c.table.Work(sessions.WorkQuery{}) {
			r := sessions.Report{Pool: w.Pool, Session: w.Session, Seq: w.Seq}
			for _, e := range w.Engines {
				if w.Phase == sessions.Telling && rapid.Bool().Draw(g.t, "acked") {
					r.Acked = append(r.Acked, e)
				}
			}
			for _, a := range w.Aborts {
				r.Aborted = append(r.Aborted, a.Ticket)
			}
			batch = append(batch, r)
		}
	})
	if rapid.IntRange(0, 4).Draw(g.t, "stale") == 0 {
		batch = append(batch, sessions.Report{Pool: g.pool(), Session: g.sessionID(), Seq: g.small("seq"), Acked: []string{"http://e0:1"}})
	}
	return reportOp(batch)
}

func (g *batches) pin() *fsmpb.Op {
	pool, id := g.pool(), fmt.Sprint("p", rapid.IntRange(0, 2).Draw(g.t, "pin"))
	switch rapid.IntRange(0, 4).Draw(g.t, "of pin") {
	case 0:
		return &fsmpb.Op{Kind: &fsmpb.Op_Unpin{Unpin: &fsmpb.Unpin{Pool: pool, Id: id}}}
	case 1:
		return &fsmpb.Op{Kind: &fsmpb.Op_ReportPin{ReportPin: &fsmpb.ReportPin{
			Pool: pool, Id: id, Engine: g.engine(), LedgerOnly: rapid.Bool().Draw(g.t, "ledger only"),
		}}}
	}
	return pinOp(sessions.PinRequest{
		Pool: pool, ID: id, Session: rapid.SampledFrom([]string{"", "", "s0", "s1"}).Draw(g.t, "pinned session"),
		Tokens: int64(g.small("tokens")), TTL: g.seconds("ttl", 600), Engine: g.engine(),
	})
}
