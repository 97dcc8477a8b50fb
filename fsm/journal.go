package fsm

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
	"kvgate/store"
)

// DecodeEvent reads a journal record.
func DecodeEvent(data []byte) (*fsmpb.Event, error) {
	e := &fsmpb.Event{}
	if err := proto.Unmarshal(data, e); err != nil {
		return nil, fmt.Errorf("%w: journal record: %w", ErrCorrupt, err)
	}
	return e, nil
}

// DecodeSettings reads the settings that an event carries.
func DecodeSettings(m *fsmpb.Settings) ledger.Settings { return decodeSettings(m) }

// maxScan bounds how many records one page of a filtered read looks at.
const maxScan = 200_000

// Journal returns the events that match, in order.
func (r *Replica) Journal(ctx context.Context, stale bool, q store.JournalQuery) (store.JournalPage, error) {
	if err := r.readable(ctx, stale); err != nil {
		return store.JournalPage{}, err
	}
	if err := r.machine.catchUp(ctx); err != nil {
		return store.JournalPage{}, err
	}
	return readJournal(r.machine.trail, q)
}

// readJournal returns one page of the events that match.
func readJournal(trail *store.Journal, q store.JournalQuery) (store.JournalPage, error) {
	page := store.JournalPage{FirstKept: trail.First(), Last: trail.Last()}
	scanned := 0
	err := trail.Read(q.FromIndex, q.FromN, 0, func(index uint64, n uint32, data []byte) (bool, error) {
		if scanned++; len(page.Events) >= q.Limit || scanned > maxScan {
			page.NextIndex, page.NextN, page.More = index, n, true
			return false, nil
		}
		e, err := DecodeEvent(data)
		if err == nil && matches(&q, e) {
			page.Events = append(page.Events, store.JournalRecord{Index: index, N: n, Data: data})
		}
		return true, err
	})
	return page, err
}

func matches(q *store.JournalQuery, e *fsmpb.Event) bool {
	for _, f := range [][2]string{
		{q.Pool, e.Pool}, {q.Ticket, e.Ticket}, {q.Session, e.Session}, {q.Holder, e.Holder}, {q.Group, e.Group},
	} {
		if f[0] != "" && f[0] != f[1] {
			return false
		}
	}
	if len(q.Kinds) > 0 && !slices.Contains(q.Kinds, e.Kind) {
		return false
	}
	if e.LedgerTime < q.SinceLedger || q.UntilLedger > 0 && e.LedgerTime >= q.UntilLedger {
		return false
	}
	at := time.Unix(0, e.WallTime)
	return (q.Since.IsZero() || !at.Before(q.Since)) && (q.Until.IsZero() || at.Before(q.Until))
}

// trimEvery is how often the leader looks whether the journal outgrew its bounds.
const trimEvery = 30 * time.Second

// trimJournal is a Duty: the leader picks the cut, the command carries the index, so that every node
// trims alike.
func (t *term) trimJournal(ctx context.Context) {
	ticker := time.NewTicker(trimEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if err := t.trimOnce(ctx); err != nil {
				t.replica.log.Warn("journal was not trimmed", "error", err)
			}
		}
	}
}

func (t *term) trimOnce(ctx context.Context) error {
	var set ledger.Settings
	t.replica.machine.view(func(l *ledger.Ledger) { set, _ = l.Settings(ledger.DefaultPool) })
	if err := t.replica.machine.flush(ctx); err != nil {
		return err
	}
	cut, err := t.replica.journalCut(set)
	if err != nil || cut == 0 {
		return err
	}
	_, err = t.do(ctx, &fsmpb.Op{Kind: &fsmpb.Op_TrimJournal{TrimJournal: &fsmpb.TrimJournal{FirstIndex: cut}}})
	return err
}

// journalCut returns the first index to keep, 0 when nothing has to go. It reads only the records that
// go, at most maxScan of them at a time.
func (r *Replica) journalCut(set ledger.Settings) (cut uint64, err error) {
	trail := r.machine.trail
	excess, err := r.journalExcess(set.JournalMaxEvents)
	if err != nil {
		return 0, err
	}
	oldest := r.now().Add(-set.JournalMaxAge)
	scanned := int64(0)
	err = trail.Read(trail.First(), 0, 0, func(index uint64, _ uint32, data []byte) (bool, error) {
		e, err := DecodeEvent(data)
		if err != nil {
			return false, err
		}
		keep := scanned >= excess && !time.Unix(0, e.WallTime).Before(oldest)
		if scanned++; keep || scanned > maxScan {
			if scanned > 1 {
				cut = index
			}
			return false, nil
		}
		return true, nil
	})
	return cut, err
}

// journalExcess returns how many events are kept beyond limit. A segment that is trimmed in part still
// counts what was trimmed of it, so its rest is counted here.
func (r *Replica) journalExcess(limit int64) (int64, error) {
	trail := r.machine.trail
	if int64(trail.Count()) <= limit {
		return 0, nil
	}
	segments := trail.Segments()
	kept, next := int64(0), uint64(math.MaxUint64)
	for i, s := range segments {
		if i == 1 {
			next = s.First
		}
		if i > 0 {
			kept += int64(s.Count)
		}
	}
	err := trail.Read(trail.First(), 0, 0, func(index uint64, _ uint32, _ []byte) (bool, error) {
		if index >= next {
			return false, nil
		}
		kept++
		return true, nil
	})
	return kept - limit, err
}
