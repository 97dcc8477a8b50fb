package fsm

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"kvgate/fsm/fsmpb"
	"kvgate/sessions"
	"kvgate/store"
)

// encodeSessionRow returns the bucket, key and value of a changed row of the session table; the value is nil
// when the row is gone. Keys are numbers, as those of leases are, but for pools.
func encodeSessionRow(c sessions.Change) (store.Change, error) {
	out := store.Change{}
	var m proto.Message
	switch {
	case c.Meta != nil:
		out.Bucket, out.Key = store.BucketSessionMeta, metaKey
		m = &fsmpb.SessionMetaRow{Seq: c.Meta.Seq}
	case c.Pool != nil:
		out.Bucket, out.Key = store.BucketSessionPools, []byte(c.Pool.Pool)
		m = encodeSessionPool(c.Pool)
	case c.Session != nil:
		out.Bucket, out.Key = store.BucketSessions, numberKey(c.Session.Seq)
		m = encodeSession(c.Session)
	case c.Ticket != nil:
		out.Bucket, out.Key = store.BucketSessionTickets, numberKey(c.Ticket.Seq)
		m = encodeSessionTicket(c.Ticket)
	case c.Owed != nil:
		out.Bucket, out.Key = store.BucketOwed, numberKey(c.Owed.Session)
		m = &fsmpb.OwedRow{Session: c.Owed.Session, Creditors: encodeCreditors(c.Owed.Creditors)}
	case c.Pin != nil:
		out.Bucket, out.Key = store.BucketPins, numberKey(c.Pin.Seq)
		m = encodePinRow(c.Pin)
	}
	if c.Deleted {
		return out, nil
	}
	value, err := rowEncoding.Marshal(m)
	out.Value = value
	return out, err
}

func encodeSessionPool(p *sessions.PoolRow) *fsmpb.SessionPoolRow {
	out := &fsmpb.SessionPoolRow{Pool: p.Pool, ListedNone: p.ListedNone, Totals: &fsmpb.SessionTotals{
		Opened: p.Totals.Opened, Closed: p.Totals.Closed, CloseFailures: p.Totals.CloseFailures, Acked: p.Totals.Acked,
		Failed: p.Totals.Failed, Left: p.Totals.Left, Idle: p.Totals.Idle, Aborted: p.Totals.Aborted,
	}}
	for _, e := range p.Engines {
		out.Engines = append(out.Engines, &fsmpb.SessionEngine{Url: e.URL, Incarnation: e.Incarnation})
	}
	return out
}

func decodeSessionPool(m *fsmpb.SessionPoolRow) *sessions.PoolRow {
	t := m.GetTotals()
	out := &sessions.PoolRow{Pool: m.Pool, ListedNone: m.GetListedNone(), Totals: sessions.Totals{
		Opened: t.GetOpened(), Closed: t.GetClosed(), CloseFailures: t.GetCloseFailures(), Acked: t.GetAcked(),
		Failed: t.GetFailed(), Left: t.GetLeft(), Idle: t.GetIdle(), Aborted: t.GetAborted(),
	}}
	for _, e := range m.Engines {
		out.Engines = append(out.Engines, sessions.Engine{URL: e.GetUrl(), Incarnation: e.GetIncarnation()})
	}
	return out
}

func encodeSession(s *sessions.SessionRow) *fsmpb.SessionRow {
	out := &fsmpb.SessionRow{
		Pool: s.Pool, Id: s.ID, Seq: s.Seq, Kind: uint32(s.Kind), Group: s.Group, State: uint32(s.State), Implicit: s.Implicit,
		Reused: s.Reused, Engine: s.Engine, EngineLost: s.EngineLost, IdleTimeout: int64(s.IdleTimeout),
		OpenedAt: int64(s.OpenedAt), ActiveAt: int64(s.ActiveAt), LastTurnAt: int64(s.LastTurnAt), Turns: s.Turns,
		Footprint: s.Footprint, Served: s.Served,
	}
	if b := s.Binding; b != nil {
		out.Binding = &fsmpb.SessionBinding{Engine: b.Engine, DpRank: b.DPRank, Ttl: int64(b.TTL), Since: int64(b.Since)}
	}
	if c := s.Close; c != (sessions.CloseRow{}) {
		out.Close = &fsmpb.SessionClose{
			Mode: uint32(c.Mode), Reason: c.Reason, Since: int64(c.Since), Phase: uint32(c.Phase), PhaseUntil: int64(c.PhaseUntil),
			AbortTimeout: int64(c.AbortTimeout), CloseDeadline: int64(c.CloseDeadline), ServedOnly: c.ServedOnly,
			Acked: int64(c.Acked), Failed: int64(c.Failed), Left: int64(c.Left), ForgetAt: int64(c.ForgetAt),
			Discovers: c.Discovers,
		}
	}
	return out
}

func decodeSession(m *fsmpb.SessionRow) *sessions.SessionRow {
	out := &sessions.SessionRow{
		Pool: m.GetPool(), ID: m.GetId(), Seq: m.GetSeq(), Kind: sessions.Kind(m.GetKind()), Group: m.GetGroup(),
		State: sessions.State(m.GetState()), Implicit: m.GetImplicit(), Reused: m.GetReused(), Engine: m.GetEngine(),
		EngineLost: m.GetEngineLost(), IdleTimeout: time.Duration(m.GetIdleTimeout()), OpenedAt: sessions.Time(m.GetOpenedAt()),
		ActiveAt: sessions.Time(m.GetActiveAt()), LastTurnAt: sessions.Time(m.GetLastTurnAt()), Turns: m.GetTurns(),
		Footprint: m.GetFootprint(), Served: m.GetServed(),
	}
	if b := m.GetBinding(); b != nil {
		out.Binding = &sessions.Binding{Engine: b.Engine, DPRank: b.DpRank, TTL: time.Duration(b.Ttl), Since: sessions.Time(b.Since)}
	}
	if c := m.GetClose(); c != nil {
		out.Close = sessions.CloseRow{
			Mode: sessions.Mode(c.Mode), Reason: c.Reason, Since: sessions.Time(c.Since), Phase: sessions.Phase(c.Phase),
			PhaseUntil: sessions.Time(c.PhaseUntil), AbortTimeout: time.Duration(c.AbortTimeout),
			CloseDeadline: time.Duration(c.CloseDeadline), ServedOnly: c.ServedOnly,
			Acked: int(c.Acked), Failed: int(c.Failed), Left: int(c.Left), ForgetAt: sessions.Time(c.ForgetAt),
			Discovers: c.Discovers,
		}
	}
	return out
}

func encodeSessionTicket(x *sessions.TicketRow) *fsmpb.SessionTicketRow {
	return &fsmpb.SessionTicketRow{
		Pool: x.Pool, Ticket: x.Ticket, Seq: x.Seq, Session: x.Session, Waiting: x.Waiting, Rid: x.RID, Holder: x.Holder,
		Since: int64(x.Since), Bypassed: x.Bypassed, Until: int64(x.Until), AbortSent: x.AbortSent,
	}
}

func decodeSessionTicket(m *fsmpb.SessionTicketRow) *sessions.TicketRow {
	return &sessions.TicketRow{
		Pool: m.Pool, Ticket: m.Ticket, Seq: m.Seq, Session: m.Session, Waiting: m.Waiting, RID: m.Rid, Holder: m.Holder,
		Since: sessions.Time(m.Since), Bypassed: m.Bypassed, Until: sessions.Time(m.Until), AbortSent: m.AbortSent,
	}
}

func encodeCreditors(in []sessions.Creditor) (out []*fsmpb.Creditor) {
	for _, c := range in {
		out = append(out, &fsmpb.Creditor{Engine: c.Engine, Debt: uint32(c.Debt)})
	}
	return out
}

func decodeCreditors(in []*fsmpb.Creditor) (out []sessions.Creditor) {
	for _, c := range in {
		out = append(out, sessions.Creditor{Engine: c.GetEngine(), Debt: sessions.Debt(c.GetDebt())})
	}
	return out
}

func encodePinRow(p *sessions.PinRow) *fsmpb.PinRow {
	return &fsmpb.PinRow{
		Pool: p.Pool, Id: p.ID, Seq: p.Seq, Session: p.Session, Engine: p.Engine, Tokens: p.Tokens,
		Since: int64(p.Since), Until: int64(p.Until), Held: p.Held, LedgerOnly: p.LedgerOnly,
	}
}

// decodeSessionRow is the inverse of encodeSessionRow. ok is false for buckets that hold nothing of the
// session table.
func decodeSessionRow(b store.Bucket, key, value []byte) (c sessions.Change, ok bool, err error) {
	decode, ok := sessionDecoders[b]
	if !ok {
		return c, false, nil
	}
	if c, err = decode(value); err != nil {
		err = fmt.Errorf("%w: row %q of bucket %v: %w", ErrCorrupt, key, b, err)
	}
	return c, true, err
}

var sessionDecoders = map[store.Bucket]func([]byte) (sessions.Change, error){
	store.BucketSessionMeta: decoder(func(m *fsmpb.SessionMetaRow) sessions.Change {
		return sessions.Change{Meta: &sessions.MetaRow{Seq: m.Seq}}
	}),
	store.BucketSessionPools: decoder(func(m *fsmpb.SessionPoolRow) sessions.Change {
		return sessions.Change{Pool: decodeSessionPool(m)}
	}),
	store.BucketSessions: decoder(func(m *fsmpb.SessionRow) sessions.Change {
		return sessions.Change{Session: decodeSession(m)}
	}),
	store.BucketSessionTickets: decoder(func(m *fsmpb.SessionTicketRow) sessions.Change {
		return sessions.Change{Ticket: decodeSessionTicket(m)}
	}),
	store.BucketOwed: decoder(func(m *fsmpb.OwedRow) sessions.Change {
		return sessions.Change{Owed: &sessions.OwedRow{Session: m.Session, Creditors: decodeCreditors(m.Creditors)}}
	}),
	store.BucketPins: decoder(func(m *fsmpb.PinRow) sessions.Change {
		return sessions.Change{Pin: &sessions.PinRow{
			Pool: m.Pool, ID: m.Id, Seq: m.Seq, Session: m.Session, Engine: m.Engine, Tokens: m.Tokens,
			Since: sessions.Time(m.Since), Until: sessions.Time(m.Until), Held: m.Held, LedgerOnly: m.LedgerOnly,
		}}
	}),
}
