package main

import (
	"context"
	"log/slog"
	"slices"

	"kvgate/fsm"
	"kvgate/ledger"
)

// seeder gives the default pool the router and engines of the command line while it has none. What the
// pool has already wins: settings are replicated, flags are this node's.
type seeder struct {
	replica *fsm.Replica
	router  string
	engines []string
	log     *slog.Logger
}

// run is a duty of the leader.
func (s *seeder) run(ctx context.Context) {
	pools, err := s.replica.Pools(ctx)
	if err != nil {
		return
	}
	set := pools[ledger.DefaultPool]
	patch := s.patch(&set)
	if len(patch.Fields) == 0 {
		return
	}
	patch.By = "flags of " + s.replica.Status().NodeID
	if _, err := s.replica.UpdateSettings(ctx, ledger.DefaultPool, patch); err != nil && ctx.Err() == nil {
		s.log.Error("the default pool did not get its router and engines; set them with `kvgate settings set`", "error", err)
	}
}

func (s *seeder) patch(set *ledger.Settings) ledger.Patch {
	var p ledger.Patch
	switch {
	case s.router == "" || s.router == set.RouterURL:
	case set.RouterURL == "":
		p.Set.RouterURL = s.router
		p.Fields = append(p.Fields, "routerUrl")
	default:
		s.log.Warn("--router differs from the pool's routerUrl, which wins; change it with `kvgate settings set`",
			"flag", s.router, "setting", set.RouterURL)
	}
	switch {
	case len(s.engines) == 0 || slices.Equal(s.engines, set.EngineURLs):
	case len(set.EngineURLs) == 0:
		p.Set.EngineURLs = s.engines
		p.Fields = append(p.Fields, "engineUrls")
	default:
		s.log.Warn("--engines differs from the pool's engineUrls, which wins; change it with `kvgate settings set`",
			"flag", s.engines, "setting", set.EngineURLs)
	}
	return p
}
