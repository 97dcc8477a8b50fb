package fsm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"

	"kvgate/store"
)

// Options configure a replica. The zero value of a field means its default.
type Options struct {
	// NodeID is a stable name, never an address.
	NodeID string
	// DataDir is made when it does not exist.
	DataDir string
	// Transport carries raft; it is closed with the replica. Required.
	Transport raft.Transport
	// Bootstrap makes the initial cluster when the directory holds none: this node alone, or Peers.
	Bootstrap bool
	Peers     []raft.Server
	// FailOpenAfter bounds how long a call waits for a leader, a new ticket for its first decision, and
	// a waiting ticket beyond its max wait. Default 2 s.
	FailOpenAfter time.Duration
	// Duties returns the work of the leader: each duty runs under the context of a term. It is called
	// once, before the node can lead.
	Duties func(*Replica) []Duty
	// Version is the build's version, for GetStatus.
	Version string
	Log     *slog.Logger
	// FreeSpaceFloor is the free space in bytes below which writes are refused. Default 64 MiB.
	FreeSpaceFloor uint64
	// SnapshotThreshold is how many log entries make raft take a snapshot. Default 16384.
	SnapshotThreshold uint64
	// Halt ends the process when going on would be unsafe: an entry that cannot be applied, or a disk
	// that refuses raft's votes. Default: log and stop the replica. It may be called from any goroutine.
	Halt func(error)
	// Now reads the clock; only its monotonic part counts. Tests and fault builds set it.
	Now func() time.Time
}

func (o *Options) fill() error {
	if o.NodeID == "" || o.DataDir == "" || o.Transport == nil {
		return errors.New("node id, data directory and transport are required")
	}
	if o.FailOpenAfter <= 0 {
		o.FailOpenAfter = 2 * time.Second
	}
	if o.FreeSpaceFloor == 0 {
		o.FreeSpaceFloor = 64 << 20
	}
	if o.SnapshotThreshold == 0 {
		o.SnapshotThreshold = 16384
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return nil
}

// Replica is one node of the cluster: raft, the machine, and what the node does while it leads.
type Replica struct {
	opts    Options
	log     *slog.Logger
	now     func() time.Time
	raft    *raft.Raft
	machine *Machine
	disk    *disk
	guard   *guard
	duties  []Duty

	ctx    context.Context
	stop   context.CancelCauseFunc
	ending sync.WaitGroup

	// mu guards term and changed. changed is closed and replaced when leadership changes anywhere.
	mu      sync.Mutex
	term    *term
	changed chan struct{}
	halted  error
}

// Open starts a replica. Everything it started ends with Close.
func Open(opts Options) (*Replica, error) {
	if err := opts.fill(); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancelCause(context.Background())
	r := &Replica{opts: opts, log: opts.Log, now: opts.Now, ctx: ctx, stop: stop, changed: make(chan struct{})}
	if err := r.open(); err != nil {
		stop(err)
		return nil, err
	}
	return r, nil
}

func (r *Replica) open() (err error) {
	if r.disk, err = openDisk(r.opts.DataDir, r.opts.NodeID, r.log, r.halt); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.disk.close())
		}
	}()
	if r.machine, err = newMachine(r.disk.state, r.disk.trail, r.log, r.halt); err != nil {
		return err
	}
	space := store.Guard{Path: r.opts.DataDir, Floor: r.opts.FreeSpaceFloor}
	r.guard = &guard{check: space.Check, log: r.log}
	r.guard.look()
	if r.opts.Duties != nil {
		r.duties = r.opts.Duties(r)
	}
	notices := make(chan bool, 16)
	if err = r.startRaft(notices); err != nil {
		return err
	}
	r.spawn(func() { r.follow(r.ctx, notices) })
	r.spawn(func() { r.guard.run(r.ctx) })
	r.observe()
	return nil
}

func (r *Replica) spawn(fn func()) {
	r.ending.Add(1)
	go func() { defer r.ending.Done(); fn() }()
}

// raftConfig holds the timeouts: an election needs half a second of silence, well above a stall of
// 150 ms, and a new leader is there about a second after the old one died.
func (r *Replica) raftConfig(notices chan<- bool) *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(r.opts.NodeID)
	c.HeartbeatTimeout = 500 * time.Millisecond
	c.ElectionTimeout = 500 * time.Millisecond
	c.LeaderLeaseTimeout = 400 * time.Millisecond
	c.CommitTimeout = 20 * time.Millisecond
	c.SnapshotThreshold = r.opts.SnapshotThreshold
	c.TrailingLogs = 8192
	c.NotifyCh = notices
	// state.db is newer than the snapshot or was rebuilt from it: see openDisk.
	c.NoSnapshotRestoreOnStart = true
	c.BatchApplyCh = true
	c.Logger = hclogTo(r.log)
	return c
}

func (r *Replica) startRaft(notices chan<- bool) error {
	c := r.raftConfig(notices)
	has, err := raft.HasExistingState(r.disk.logs, r.disk.rafts, r.disk.snapshots)
	if err != nil {
		return fmt.Errorf("look for raft state: %w", err)
	}
	if r.opts.Bootstrap && !has {
		err := raft.BootstrapCluster(c, r.disk.logs, r.disk.rafts, r.disk.snapshots, r.opts.Transport,
			raft.Configuration{Servers: r.initialServers()})
		if err != nil {
			return fmt.Errorf("bootstrap: %w", err)
		}
	}
	r.raft, err = raft.NewRaft(c, r.machine, r.disk.logs, r.disk.rafts, r.disk.snapshots, r.opts.Transport)
	if err != nil {
		return fmt.Errorf("start raft: %w", err)
	}
	return nil
}

func (r *Replica) initialServers() []raft.Server {
	if len(r.opts.Peers) > 0 {
		return r.opts.Peers
	}
	return []raft.Server{{ID: raft.ServerID(r.opts.NodeID), Address: r.opts.Transport.LocalAddr(), Suffrage: raft.Voter}}
}

// observe wakes whoever waits for a leader when raft hears of one.
func (r *Replica) observe() {
	ch := make(chan raft.Observation, 16)
	o := raft.NewObserver(ch, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.LeaderObservation)
		return ok
	})
	r.raft.RegisterObserver(o)
	r.spawn(func() {
		defer r.raft.DeregisterObserver(o)
		for {
			select {
			case <-r.ctx.Done():
				return
			case <-ch:
				r.wake()
			}
		}
	})
}

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

// lead returns the present term when this node leads. Otherwise it waits up to FailOpenAfter for a
// leader and answers *LeaderError when another node leads, ErrNoLeader when none was found.
func (r *Replica) lead(ctx context.Context) (*term, error) {
	timer := time.NewTimer(r.opts.FailOpenAfter)
	defer timer.Stop()
	for {
		r.mu.Lock()
		t, changed := r.term, r.changed
		r.mu.Unlock()
		if t != nil {
			return t, nil
		}
		if addr, id := r.raft.LeaderWithID(); id != "" && string(id) != r.opts.NodeID {
			return nil, &LeaderError{ID: string(id), Address: string(addr)}
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
	if r.raft.State() == raft.Leader && r.voters() > 1 {
		if err := r.raft.LeadershipTransfer().Error(); err != nil {
			r.log.Warn("leadership was not handed over", "error", err)
		}
	}
	r.stop(ErrShutdown)
	r.ending.Wait()
	err := r.raft.Shutdown().Error()
	if c, ok := r.opts.Transport.(raft.WithClose); ok {
		err = errors.Join(err, c.Close())
	}
	return errors.Join(err, r.disk.close())
}

func (r *Replica) voters() (n int) {
	f := r.raft.GetConfiguration()
	if f.Error() != nil {
		return 0
	}
	for _, s := range f.Configuration().Servers {
		if s.Suffrage == raft.Voter {
			n++
		}
	}
	return n
}

func (r *Replica) newClusterID() string { return uuid.NewString() }
