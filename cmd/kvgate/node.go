package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"kvgate/fsm"
	"kvgate/ledger"
	"kvgate/rpc"
	"kvgate/scrape"
	"kvgate/sessions"
	"kvgate/store"
)

// node is one running node: the replica and the server of its API.
type node struct {
	replica *fsm.Replica
	engines *sessions.Client
	url     string
	log     *slog.Logger
	cancel  context.CancelFunc
	served  chan error
	// saving is closed when nothing is saved on a schedule any more.
	saving chan struct{}
	// closed closes the node once and answers every time.
	closed func() error
}

// startNode starts a node and returns once its API answers; it may not have a leader yet. The node
// runs until Close is called or it halts.
func startNode(ctx context.Context, cfg ServeConfig, log *slog.Logger) (*node, error) {
	keys, err := readKeys(&cfg)
	if err != nil {
		return nil, err
	}
	secure, err := loadSecurity(&cfg, log)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for the API: %w", err)
	}
	closes := rpc.NewCloseMetrics()
	engines := sessions.NewClient(nil, sessions.Keys{Engine: keys.Engine, Admin: keys.EngineAdmin})
	replica, err := openReplica(&cfg, keys, engines, secure, listener.Addr(), closes, log)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	server, err := rpc.New(serverOptions(replica, secure, closes, log))
	if err != nil {
		return nil, errors.Join(err, replica.Close(), listener.Close())
	}
	// Close ends serving, after leadership was handed over.
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	n := &node{
		replica: replica, engines: engines, url: secure.baseURL(listener.Addr().String()), log: log, cancel: cancel, served: make(chan error, 1),
		saving: make(chan struct{}),
	}
	n.closed = sync.OnceValue(n.close)
	go func() { n.served <- server.Serve(serving, listener) }()
	go func() { n.saveOnSchedule(serving, &cfg); close(n.saving) }()
	log.Info("serving", "url", n.url, "node", cfg.NodeID)
	return n, nil
}

func serverOptions(replica *fsm.Replica, secure security, closes *rpc.CloseMetrics, log *slog.Logger) rpc.Options {
	o := rpc.Options{Backend: replica, Log: log, TLS: secure.api, Closes: closes}
	if secure.tokens != nil {
		o.Tokens = secure.tokens
	}
	return o
}

func openReplica(cfg *ServeConfig, keys scrape.Keys, engines fsm.Engines, secure security, api net.Addr, closes *rpc.CloseMetrics, log *slog.Logger) (*fsm.Replica, error) {
	o := fsm.Options{
		NodeID: cfg.NodeID, DataDir: cfg.DataDir, RaftListen: cfg.RaftListen, RaftAdvertise: cfg.RaftAdvertise,
		APIAddress: cfg.apiAddress(api), Bootstrap: cfg.Bootstrap, Peers: raftServers(cfg.Peers), Join: cfg.Join,
		FailOpenAfter: cfg.FailOpenAfter, SnapshotThreshold: cfg.SnapshotThreshold,
		Engines: engines, ObserveClose: closes.Observe,
		Version: buildVersion(), Log: log,
		Duties: func(r *fsm.Replica) []fsm.Duty {
			seed := &seeder{replica: r, router: cfg.Router, engines: cfg.Engines, log: log}
			poller := scrape.NewManager(r, r, scrape.Options{Keys: keys, Logger: log, Known: knownEngines(r)})
			return []fsm.Duty{seed.run, poller.Run}
		},
	}
	if secure.raft != nil {
		o.ServerTLS, o.ClientTLS = secure.raft.Server(), secure.raft.Client
	}
	injectFaults(&o)
	return fsm.Open(o)
}

func raftServers(peers []Peer) []raft.Server {
	out := make([]raft.Server, len(peers))
	for i, p := range peers {
		out[i] = raft.Server{ID: raft.ServerID(p.ID), Address: raft.ServerAddress(p.Address), Suffrage: raft.Voter}
	}
	return out
}

// knownEngines returns what the ledger knows of a pool's engines, so that a new leader carries on
// where the old one was.
func knownEngines(r *fsm.Replica) func(context.Context, string) []ledger.Engine {
	return func(ctx context.Context, pool string) (engines []ledger.Engine) {
		err := r.View(ctx, true, func(l *ledger.Ledger) {
			if c, ok := l.Capacity(pool); ok {
				engines = c.Engines
			}
		})
		if err != nil {
			return nil
		}
		return engines
	}
}

// saveOnSchedule saves snapshots until ctx ends, where the configuration asks for that.
func (n *node) saveOnSchedule(ctx context.Context, cfg *ServeConfig) {
	if cfg.SnapshotDir == "" {
		return
	}
	ticker := time.NewTicker(cfg.SnapshotEvery)
	defer ticker.Stop()
	s := &saver{
		replica: n.replica, node: cfg.NodeID, dir: cfg.SnapshotDir, keep: cfg.SnapshotKeep, log: n.log, now: time.Now, free: store.FreeBytes,
	}
	s.run(ctx, ticker.C)
}

// URL returns the base URL of the API.
func (n *node) URL() string { return n.url }

// Wait blocks until the node stops by itself.
func (n *node) Wait() error {
	select {
	case err := <-n.served:
		n.served <- err
		return err
	case <-n.replica.Done():
		return fmt.Errorf("node stopped: %s", n.replica.Status().Health)
	}
}

// Close hands over leadership when somebody can take it, stops serving, and closes the disk. Callers that
// are blocked here are sent to the new leader, where their tickets have kept their places.
func (n *node) Close() error { return n.closed() }

func (n *node) close() error {
	n.replica.HandOver()
	n.cancel()
	err := <-n.served
	n.served <- err
	<-n.saving
	err = errors.Join(err, n.replica.Close())
	n.engines.CloseIdleConnections()
	return err
}
