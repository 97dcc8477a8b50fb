package fsm

import (
	"encoding/binary"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
	"kvgate/store"
)

// Keys of rows: leases, waiters and marks are keyed by their number, which grows with time, so that
// new rows are appended and old ones leave from one end; pools by name; holders by pool and name.

var rowEncoding = proto.MarshalOptions{Deterministic: true}

var metaKey = []byte("meta")

func seqKey(s ledger.Seq) []byte { return numberKey(uint64(s)) }

func numberKey(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func holderKey(pool, holder string) []byte { return []byte(pool + "\x00" + holder) }

// encodeRow returns the bucket, key and value of a changed row; the value is nil when the row is gone.
func encodeRow(c ledger.Change) (store.Change, error) {
	out := store.Change{}
	var m proto.Message
	switch {
	case c.Meta != nil:
		out.Bucket, out.Key = store.BucketMeta, metaKey
		m = &fsmpb.MetaRow{
			Now: int64(c.Meta.Now), Seq: uint64(c.Meta.Seq), Term: c.Meta.Term, Leader: c.Meta.Leader,
			ClusterId: c.Meta.ClusterID, JournalFirst: c.Meta.JournalFirst, Version: c.Meta.Version,
		}
	case c.Pool != nil:
		out.Bucket, out.Key = store.BucketPools, []byte(c.Name)
		set := encodeSettings(&c.Pool.Settings, ledger.SettingNames())
		if !c.Pool.Settings.Quarantine {
			set.Quarantine = nil // as in rows of releases that do not know it
		}
		m = &fsmpb.PoolRow{Name: c.Pool.Name, Settings: set}
	case c.Capacity != nil:
		out.Bucket, out.Key = store.BucketCapacity, []byte(c.Name)
		m = encodeCapacity(c.Capacity)
	case c.Counters != nil:
		out.Bucket, out.Key = store.BucketCounters, []byte(c.Name)
		m = encodeCountersRow(c.Counters)
	case c.Lease != nil:
		out.Bucket, out.Key = store.BucketLeases, seqKey(c.Lease.Grant)
		m = encodeLease(c.Lease)
	case c.Waiter != nil:
		out.Bucket, out.Key = store.BucketWaiters, seqKey(c.Waiter.Seq)
		m = encodeWaiter(c.Waiter)
	case c.Mark != nil:
		out.Bucket, out.Key = store.BucketMarks, seqKey(c.Mark.Seq)
		m = &fsmpb.MarkRow{
			Pool: c.Mark.Pool, Ticket: c.Mark.Ticket, Seq: uint64(c.Mark.Seq), Until: int64(c.Mark.Until),
			Call: c.Mark.Call, Was: uint32(c.Mark.Was), UsedBy: c.Mark.UsedBy, Spent: c.Mark.Spent,
			Ended: encodeEnded(c.Mark.Ended),
		}
	case c.Holder != nil:
		out.Bucket, out.Key = store.BucketHolders, holderKey(c.Holder.Pool, c.Holder.Holder)
		m = &fsmpb.HolderRow{Pool: c.Holder.Pool, Holder: c.Holder.Holder, LastActive: int64(c.Holder.LastActive)}
	}
	if c.Deleted {
		return out, nil
	}
	value, err := rowEncoding.Marshal(m)
	out.Value = value
	return out, err
}

func encodeCapacity(c *ledger.CapacityRow) *fsmpb.CapacityRow {
	return &fsmpb.CapacityRow{
		Epoch: c.Epoch, Snapshot: c.Snapshot, SnapshotAt: int64(c.SnapshotAt), Degraded: c.Degraded,
		DegradedReason: c.DegradedReason, Discovery: c.Discovery, Engines: encodeEngines(c.Engines),
	}
}

func encodeCountersRow(c *ledger.CountersRow) *fsmpb.CountersRow {
	return &fsmpb.CountersRow{
		Total: encodeCounters(&c.Total), Drained: encodeCounters(&c.Drained), PressureSum: c.PressureSum,
		PressureCount: c.PressureCount, PressurePeak: c.PressurePeak, LastPressure: c.LastPressure,
		Run: c.Run, Step: c.Step, Stepped: c.Stepped, Answer: c.Answer,
	}
}

func encodeLease(x *ledger.LeaseRow) *fsmpb.LeaseRow {
	return &fsmpb.LeaseRow{
		Pool: x.Pool, Ticket: x.Ticket, Grant: uint64(x.Grant), Epoch: x.Epoch, Tokens: int64(x.Tokens),
		GrantedAt: int64(x.GrantedAt), Ttl: int64(x.TTL), Deadline: int64(x.Deadline), Holder: x.Holder,
		Session: x.Session, Group: x.Group, Rid: x.RID, ClaimBy: int64(x.ClaimBy), Waiter: uint64(x.Waiter), Attempt: x.Attempt,
	}
}

func encodeWaiter(w *ledger.WaiterRow) *fsmpb.WaiterRow {
	return &fsmpb.WaiterRow{
		Pool: w.Pool, Ticket: w.Ticket, Seq: uint64(w.Seq), Tokens: int64(w.Tokens), Priority: w.Priority,
		Since: int64(w.Since), MaxWait: int64(w.MaxWait), Ttl: int64(w.TTL), Reason: uint32(w.Reason),
		Holder: w.Holder, Session: w.Session, Group: w.Group, Rid: w.RID, Attached: w.Attached, DropAt: int64(w.DropAt),
		Attempt: w.Attempt, Asked: int64(w.Asked),
	}
}

// decodeRow is the inverse of encodeRow.
func decodeRow(b store.Bucket, key, value []byte) (ledger.Change, error) {
	decode, ok := rowDecoders[b]
	if !ok {
		return ledger.Change{}, nil
	}
	c, err := decode(value)
	if err != nil {
		return c, fmt.Errorf("%w: row %q of bucket %v: %w", ErrCorrupt, key, b, err)
	}
	c.Name = string(key)
	return c, nil
}

var rowDecoders = map[store.Bucket]func([]byte) (ledger.Change, error){
	store.BucketMeta: decoder(func(m *fsmpb.MetaRow) ledger.Change {
		return ledger.Change{Meta: &ledger.MetaRow{
			Now: ledger.Time(m.Now), Seq: ledger.Seq(m.Seq), Term: m.Term, Leader: m.Leader,
			ClusterID: m.ClusterId, JournalFirst: m.JournalFirst, Version: m.Version,
		}}
	}),
	store.BucketPools: decoder(func(m *fsmpb.PoolRow) ledger.Change {
		return ledger.Change{Pool: &ledger.PoolRow{Name: m.Name, Settings: decodeSettings(m.Settings)}}
	}),
	store.BucketCapacity: decoder(func(m *fsmpb.CapacityRow) ledger.Change {
		return ledger.Change{Capacity: &ledger.CapacityRow{
			Epoch: m.Epoch, Snapshot: m.Snapshot, SnapshotAt: ledger.Time(m.SnapshotAt), Degraded: m.Degraded,
			DegradedReason: m.DegradedReason, Discovery: m.Discovery, Engines: decodeEngines(m.Engines),
		}}
	}),
	store.BucketCounters: decoder(func(m *fsmpb.CountersRow) ledger.Change {
		return ledger.Change{Counters: &ledger.CountersRow{
			Total: decodeCounters(m.Total), Drained: decodeCounters(m.Drained), PressureSum: m.PressureSum,
			PressureCount: m.PressureCount, PressurePeak: m.PressurePeak, LastPressure: m.LastPressure,
			Run: m.Run, Step: m.Step, Stepped: m.Stepped, Answer: m.Answer,
		}}
	}),
	store.BucketLeases: decoder(func(m *fsmpb.LeaseRow) ledger.Change {
		return ledger.Change{Lease: &ledger.LeaseRow{
			Pool: m.Pool, Ticket: m.Ticket, Grant: ledger.Seq(m.Grant), Epoch: m.Epoch, Tokens: ledger.Tokens(m.Tokens),
			GrantedAt: ledger.Time(m.GrantedAt), TTL: time.Duration(m.Ttl), Deadline: ledger.Time(m.Deadline),
			Holder: m.Holder, Session: m.Session, Group: m.Group, RID: m.Rid, ClaimBy: ledger.Time(m.ClaimBy),
			Waiter: ledger.Seq(m.Waiter), Attempt: m.Attempt,
		}}
	}),
	store.BucketWaiters: decoder(func(m *fsmpb.WaiterRow) ledger.Change {
		return ledger.Change{Waiter: &ledger.WaiterRow{
			Pool: m.Pool, Ticket: m.Ticket, Seq: ledger.Seq(m.Seq), Tokens: ledger.Tokens(m.Tokens), Priority: m.Priority,
			Since: ledger.Time(m.Since), MaxWait: time.Duration(m.MaxWait), TTL: time.Duration(m.Ttl),
			Reason: ledger.WaitReason(m.Reason), Holder: m.Holder, Session: m.Session, Group: m.Group, RID: m.Rid,
			Attached: m.Attached, DropAt: ledger.Time(m.DropAt), Attempt: m.Attempt,
			Asked: ledger.Tokens(m.Asked),
		}}
	}),
	store.BucketMarks: decoder(func(m *fsmpb.MarkRow) ledger.Change {
		return ledger.Change{Mark: &ledger.MarkRow{
			Pool: m.Pool, Ticket: m.Ticket, Seq: ledger.Seq(m.Seq), Until: ledger.Time(m.Until),
			Call: m.Call, Was: ledger.CancelState(m.Was), UsedBy: m.UsedBy, Spent: m.Spent,
			Ended: decodeEnded(m.Ended),
		}}
	}),
	store.BucketHolders: decoder(func(m *fsmpb.HolderRow) ledger.Change {
		return ledger.Change{Holder: &ledger.HolderRow{Pool: m.Pool, Holder: m.Holder, LastActive: ledger.Time(m.LastActive)}}
	}),
}

// message is what protobuf generates for M.
type message[M any] interface {
	*M
	proto.Message
}

func decoder[C, M any, P message[M]](convert func(P) C) func([]byte) (C, error) {
	return func(value []byte) (C, error) {
		var m M
		if err := proto.Unmarshal(value, P(&m)); err != nil {
			var none C
			return none, err
		}
		return convert(P(&m)), nil
	}
}

func encodeEnded(in []ledger.EndedCall) (out []*fsmpb.EndedCall) {
	for _, e := range in {
		out = append(out, &fsmpb.EndedCall{Call: e.Call, Was: uint32(e.Was)})
	}
	return out
}

func decodeEnded(in []*fsmpb.EndedCall) (out []ledger.EndedCall) {
	for _, e := range in {
		out = append(out, ledger.EndedCall{Call: e.GetCall(), Was: ledger.CancelState(e.GetWas())})
	}
	return out
}
