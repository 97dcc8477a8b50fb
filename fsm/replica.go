package fsm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"

	"kvgate/fsm/peer"
	"kvgate/ledger"
	"kvgate/sessions"
	"kvgate/store"
)

// Replica is one node of the cluster: raft, the machine, and what the node does while it leads.
type Replica struct {
	opts      Options
	log       *slog.Logger
	now       func() time.Time
	config    *raft.Config
	transport *raft.NetworkTransport
	// raft is nil until the node has formed or joined a cluster: see started.
	raft     *raft.Raft
	network  *peer.Network
	peers    *peers
	machine  *Machine
	disk     *disk
	guard    *guard
	watchdog *watchdog
	duties   []Duty
	// closer is nil when the node makes no calls to engines.
	closer  *sessions.Closer
	notices chan bool
	// callBase is random; calls counts from it.
	callBase uint64
	calls    atomic.Uint64

	ctx    context.Context
	stop   context.CancelCauseFunc
	ending sync.WaitGroup

	// restoring is held by a restore, which foresees the index that raft will choose: one at a time. Entries are
	// proposed under its reading side, so that none slips in between what a restore counts as lost and the loss.
	restoring sync.RWMutex

	// mu guards term, changed and halted. changed is closed and replaced when leadership changes anywhere.
	mu      sync.Mutex
	term    *term
	changed chan struct{}
	halted  error
}

// Open starts a replica. Everything it started ends with Close. A node of a cluster that is yet to form
// answers calls as a node without a leader meanwhile.
func Open(opts Options) (*Replica, error) {
	if err := opts.fill(); err != nil {
		return nil, err
	}
	running, stop := context.WithCancelCause(context.Background())
	r := &Replica{opts: opts, log: opts.Log, now: opts.Now, ctx: running, stop: stop, changed: make(chan struct{})}
	random := uuid.New()
	r.callBase = binary.LittleEndian.Uint64(random[:])
	if err := r.open(); err != nil {
		stop(err)
		return nil, errors.Join(err, r.release())
	}
	return r, nil
}

func (r *Replica) open() (err error) {
	r.watchdog = newWatchdog(r.opts.DiskStallLimit, r.now)
	if r.disk, err = openDisk(r.opts.DataDir, r.opts.NodeID, r.log, r.raftOptions()); err != nil {
		return err
	}
	if r.machine, err = newMachine(r.disk, r.opts.CommandVersion, r.log, r.halt); err != nil {
		return err
	}
	if before := r.opts.BeforeWrite; before != nil {
		r.machine.scribe.put = func(p *page) error {
			if err := before(OpPage); err != nil {
				return err
			}
			return r.machine.persist(p)
		}
	}
	r.machine.stopping = r.ctx.Done()
	r.machine.copyEvents = r.copyEvents
	if err = r.keepClusterID(); err != nil {
		return err
	}
	r.guard = &guard{check: r.opts.CheckDisk, log: r.log}
	r.guard.look()
	r.closer = r.newCloser()
	if r.opts.Duties != nil {
		r.duties = r.opts.Duties(r)
	}
	if err = r.listen(); err != nil {
		return err
	}
	return r.begin()
}

// raftOptions hooks the watchdog into raft's log, and turns a failed vote into a halt with a reason.
func (r *Replica) raftOptions() store.RaftOptions {
	return store.RaftOptions{
		Log: r.log, Observe: r.watchdog.after,
		BeforeWrite: func(op string) error {
			r.watchdog.before(op)
			if r.opts.BeforeWrite != nil {
				return r.opts.BeforeWrite(op)
			}
			return nil
		},
		Retry: r.awaitDisk,
		Fatal: func(op string, err error) {
			r.halt(fmt.Errorf("raft's term and vote cannot be written (%s): check the disk, then start again: %w", op, err))
		},
	}
}

// awaitDisk reports whether a write of raft's term or vote should be tried again, after a while: a full
// or read-only disk may pass, and meanwhile the node answers as one without a leader. A node that stops
// meanwhile never answers raft, which would panic on a failed vote: the process is on its way out.
func (r *Replica) awaitDisk(err error) bool {
	if !diskRefuses(err) {
		return false
	}
	select {
	case <-r.ctx.Done():
		select {}
	case <-time.After(retryWrite):
		return true
	}
}

// abandon cuts the node off from the others, so that they stop hearing from it. Heartbeats go over
// connections that are open already, so these are closed.
func (r *Replica) abandon() {
	_ = r.network.Sever()
	_ = r.transport.Close()
}

// listen opens the port for other nodes.
func (r *Replica) listen() (err error) {
	r.network, err = peer.Listen(peer.Options{
		Listen: r.opts.RaftListen, Advertise: r.opts.RaftAdvertise, ServerTLS: r.opts.ServerTLS, ClientTLS: r.opts.ClientTLS,
		Log: r.log, Self: func() peer.Identity {
			return peer.Identity{NodeID: r.opts.NodeID, ClusterID: r.disk.dir.Node().ClusterID}
		},
	})
	if err != nil {
		return err
	}
	r.peers = newPeers(r, r.network)
	r.spawn(r.peers.serve)
	return nil
}

// begin makes the node part of a cluster and starts raft, in the background when it must wait for peers.
func (r *Replica) begin() error {
	r.notices = make(chan bool, 16)
	r.config = r.raftConfig(r.notices)
	r.transport = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: r.network.Raft(), MaxPool: 3, Timeout: 10 * time.Second, Logger: r.config.Logger, ServerAddressProvider: nil,
		// One: no pipeline. It can hang for good after a follower refused an entry [hashicorp/raft#612], and
		// with one batch in flight there is nothing to gain from it.
		MaxRPCsInFlight: 1,
	})
	has, err := raft.HasExistingState(r.disk.logs, r.disk.rafts, r.disk.snapshots)
	if err != nil {
		return fmt.Errorf("look for raft state: %w", err)
	}
	if !has && len(r.opts.Peers)+len(r.opts.Join) > 0 {
		r.network.HoldRaft(true)
		r.spawn(func() {
			if err := r.enter(); err != nil && r.ctx.Err() == nil {
				r.halt(err)
			}
		})
		return nil
	}
	if err := r.form(has); err != nil {
		return err
	}
	return r.start()
}

func (r *Replica) start() error {
	started, err := raft.NewRaft(r.config, r.machine, r.disk.logs, r.disk.rafts, r.disk.snapshots, r.transport)
	if err != nil {
		return fmt.Errorf("start raft: %w", err)
	}
	r.network.HoldRaft(false)
	r.mu.Lock()
	r.raft = started
	r.mu.Unlock()
	r.spawn(func() { r.follow(r.ctx, r.notices) })
	r.spawn(func() { r.guard.run(r.ctx) })
	r.spawn(func() { r.watchdog.run(r.ctx, r) })
	r.spawn(func() { r.peers.watch(r.ctx) })
	r.observe()
	r.wake()
	return nil
}

// started returns raft, nil while the node is not part of a cluster yet.
func (r *Replica) started() *raft.Raft {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.raft
}

func (r *Replica) spawn(fn func()) {
	r.ending.Add(1)
	go func() { defer r.ending.Done(); fn() }()
}

// raftConfig holds the timeouts. Heartbeats come at most HeartbeatTimeout/5 apart and a follower asks for
// votes after at least one HeartbeatTimeout of silence, so a stall of 150 ms, and up to 240 ms, goes unnoticed.
// Another follower grants its vote only when its own time is over, too (pre-vote), so an election begins with
// the later of both: about half a second after the leader died.
func (r *Replica) raftConfig(notices chan<- bool) *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(r.opts.NodeID)
	c.HeartbeatTimeout = 300 * time.Millisecond
	c.ElectionTimeout = 300 * time.Millisecond
	c.LeaderLeaseTimeout = 300 * time.Millisecond
	c.CommitTimeout = 20 * time.Millisecond
	c.SnapshotThreshold = r.opts.SnapshotThreshold
	// A node that lags by more gets a snapshot; what a snapshot covers is not worth keeping for long.
	c.TrailingLogs = min(8192, r.opts.SnapshotThreshold)
	// Looking whether a snapshot is due costs nothing; raft's two minutes would let a busy log grow long.
	c.SnapshotInterval = 2 * time.Second
	c.NotifyCh = notices
	// state.db is newer than the snapshot or was rebuilt from it: see openDisk.
	c.NoSnapshotRestoreOnStart = true
	c.BatchApplyCh = true
	c.Logger = hclogTo(r.log)
	return c
}

// observe wakes whoever waits for a leader when raft hears of one, and keeps the cluster's id once the
// machine knows it.
func (r *Replica) observe() {
	ch := make(chan raft.Observation, 16)
	o := raft.NewObserver(ch, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.LeaderObservation)
		return ok
	})
	r.raft.RegisterObserver(o)
	r.spawn(func() {
		defer r.raft.DeregisterObserver(o)
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-r.ctx.Done():
				return
			case <-ch:
				r.wake()
			case <-ticker.C:
			}
			if err := r.keepClusterID(); err != nil {
				r.halt(err)
			}
		}
	})
}

// clusterID returns what the machine knows, empty before the first leader.
func (r *Replica) clusterID() (id string) {
	r.machine.view(func(l *ledger.Ledger) { id = l.Meta().ClusterID })
	return id
}

// keepClusterID writes the cluster's id into the data directory. A directory of another cluster is
// refused.
func (r *Replica) keepClusterID() error {
	id := r.clusterID()
	if id == "" || id == r.disk.dir.Node().ClusterID {
		return nil
	}
	return r.disk.dir.SetClusterID(id)
}

func (r *Replica) newClusterID() string { return uuid.NewString() }

func (r *Replica) publish(t *term) {
	r.mu.Lock()
	r.term = t
	r.mu.Unlock()
	r.wake()
}

func (r *Replica) wake() {
	r.mu.Lock()
	close(r.changed)
	r.changed = make(chan struct{})
	r.mu.Unlock()
}

// leading returns the present term, nil while this node does not lead.
func (r *Replica) leading() *term {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.term
}

// lead returns the present term when this node leads. Otherwise it waits up to FailOpenAfter for a
// leader and answers *LeaderError when another node leads, ErrNoLeader when none was found.
func (r *Replica) lead(ctx context.Context) (*term, error) {
	if t := r.leading(); t != nil {
		return t, nil
	}
	timer := time.NewTimer(r.opts.FailOpenAfter)
	defer timer.Stop()
	for {
		r.mu.Lock()
		t, changed := r.term, r.changed
		r.mu.Unlock()
		if t != nil {
			return t, nil
		}
		if id, addr := r.leader(); id != "" && id != r.opts.NodeID {
			return nil, &LeaderError{ID: id, Address: addr}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-r.ctx.Done():
			return nil, context.Cause(r.ctx)
		case <-timer.C:
			return nil, ErrNoLeader
		}
	}
}

// leader returns the leader's id and raft address as far as this node knows.
func (r *Replica) leader() (id, addr string) {
	started := r.started()
	if started == nil {
		return "", ""
	}
	a, i := started.LeaderWithID()
	return string(i), string(a)
}

// halt stops the node after something that it must not survive.
func (r *Replica) halt(err error) {
	r.log.Error("node halts", "error", err)
	r.mu.Lock()
	if r.halted == nil {
		r.halted = err
	}
	r.mu.Unlock()
	r.stop(fmt.Errorf("%w: %w", ErrShutdown, err))
	if r.opts.Halt != nil {
		r.opts.Halt(err)
	}
}

// Done is closed when the replica stops, by Close or because it halted.
func (r *Replica) Done() <-chan struct{} { return r.ctx.Done() }

// Close hands leadership over when others can take it, stops everything and marks the disk clean.
func (r *Replica) Close() error {
	r.HandOver()
	r.stop(ErrShutdown)
	return r.release()
}

// release waits for what was started and closes what was opened, in the reverse order.
func (r *Replica) release() error {
	if r.peers != nil {
		r.peers.close()
	}
	r.ending.Wait()
	var err error
	if r.raft != nil {
		err = r.raft.Shutdown().Error()
	}
	if r.transport != nil {
		err = errors.Join(err, r.transport.Close())
		r.transport.CloseStreams() // Close leaves pooled connections open
	}
	if r.network != nil {
		err = errors.Join(err, r.network.Close())
	}
	if r.machine != nil {
		r.machine.rest()
	}
	if r.disk != nil {
		err = errors.Join(err, r.disk.close())
	}
	return err
}
