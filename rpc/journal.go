package rpc

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"kvgate/fsm"
	"kvgate/fsm/fsmpb"
	"kvgate/ledger"
	kvgatev1 "kvgate/rpc/kvgate/v1"
	"kvgate/sessions"
	"kvgate/store"
)

// ReadJournal implements the service. A page may be empty and still have a next one, when a filter
// matched nothing in the part that was looked at.
func (s *observeService) ReadJournal(ctx context.Context, req *connect.Request[kvgatev1.ReadJournalRequest]) (*connect.Response[kvgatev1.ReadJournalResponse], error) {
	q, err := journalQuery(req.Msg)
	if err != nil {
		return nil, err
	}
	page, err := s.backend.Journal(ctx, req.Msg.GetStale(), q)
	if err != nil {
		return nil, err
	}
	m := &kvgatev1.ReadJournalResponse{FirstKeptIndex: page.FirstKept, LastIndex: page.Last}
	if req.Msg.GetPageToken() == "" {
		if m.FirstKeptTime, err = s.firstKept(ctx); err != nil {
			return nil, err
		}
	}
	for _, r := range page.Events {
		event, err := journalEvent(r)
		if err != nil {
			return nil, err
		}
		m.Events = append(m.Events, event)
	}
	if page.More {
		m.NextPageToken = pageToken{kind: journalPage, a: page.NextIndex, b: uint64(page.NextN)}.String()
	}
	return connect.NewResponse(m), nil
}

// firstKept returns when the oldest kept event happened, nil in an empty journal.
func (s *observeService) firstKept(ctx context.Context) (*timestamppb.Timestamp, error) {
	page, err := s.backend.Journal(ctx, true, store.JournalQuery{Limit: 1})
	if err != nil || len(page.Events) == 0 {
		return nil, err
	}
	first, err := journalEvent(page.Events[0])
	if err != nil {
		return nil, err
	}
	return first.WallTime, nil
}

// journalKinds are the kinds that events may have, in alphabetical order.
var journalKinds = slices.Sorted(slices.Values(append(
	kindNames(
		ledger.KindAbandoned, ledger.KindAdmitted, ledger.KindAttached, ledger.KindBypassed, ledger.KindCancelled, ledger.KindCapacity,
		ledger.KindDegraded, ledger.KindDetached, ledger.KindDrained, ledger.KindEpoch, ledger.KindHolderExpired, ledger.KindLeader,
		ledger.KindLeaseExpired, ledger.KindPoolDeleted, ledger.KindRecovered, ledger.KindReleased, ledger.KindRenewed, ledger.KindRestored, ledger.KindSettings,
		ledger.KindTrimmed, ledger.KindUnclaimed, ledger.KindUsage, ledger.KindWaiting,
	),
	kindNames(
		sessions.SessionOpened, sessions.SessionBound, sessions.SessionUnbound, sessions.SessionClosing, sessions.SessionPhase,
		sessions.AbortSent, sessions.AbortRefused, sessions.CloseSent, sessions.CloseFailed, sessions.CloseVoided, sessions.SessionClosed,
		sessions.TicketForgotten, sessions.Pinned, sessions.Unpinned,
	)...,
)))

func kindNames[K ~string](kinds ...K) []string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = string(k)
	}
	return names
}

// checkKinds refuses what no event can be: a typing error would read as "nothing happened".
func checkKinds(kinds []string) error {
	for _, k := range kinds {
		if !slices.Contains(journalKinds, k) {
			return invalid("kinds", quote(k), "any of "+strings.Join(journalKinds, ", "))
		}
	}
	return nil
}

func journalQuery(m *kvgatev1.ReadJournalRequest) (store.JournalQuery, error) {
	q := store.JournalQuery{
		FromIndex: m.GetFromIndex(),
		Pool:      m.GetPool(),
		Ticket:    m.GetTicketId(),
		Session:   m.GetSessionId(),
		Holder:    m.GetHolderId(),
		Group:     m.GetGroupId(),
		Kinds:     m.GetKinds(),
		Limit:     pageSize(m.GetPageSize()),
	}
	if err := checkKinds(q.Kinds); err != nil {
		return q, err
	}
	var err error
	if q.Since, err = wallTime("since", m.GetSince()); err != nil {
		return q, err
	}
	if q.Until, err = wallTime("until", m.GetUntil()); err != nil {
		return q, err
	}
	q.SinceLedger = m.GetSinceLedgerTime()
	if m.UntilLedgerTime != nil {
		q.UntilLedger = max(*m.UntilLedgerTime, 1)
	}
	if m.GetPageToken() == "" {
		return q, nil
	}
	token, err := parsePageToken(journalPage, m.GetPageToken())
	if err != nil {
		return q, err
	}
	q.FromIndex, q.FromN = token.a, uint32(min(token.b, math.MaxUint32))
	return q, nil
}

// wallTime returns the zero time for an unset field.
func wallTime(field string, t *timestamppb.Timestamp) (time.Time, error) {
	if t == nil {
		return time.Time{}, nil
	}
	if err := t.CheckValid(); err != nil {
		return time.Time{}, invalid(field, fmt.Sprintf("%d.%09ds", t.GetSeconds(), t.GetNanos()), "a time in the years 1 to 9999")
	}
	return t.AsTime(), nil
}

// journalEvent decodes one record. The journal names a lease by ticket, epoch and grant; people get
// its id as well.
func journalEvent(r store.JournalRecord) (*kvgatev1.JournalEvent, error) {
	e, err := fsm.DecodeEvent(r.Data)
	if err != nil {
		return nil, fmt.Errorf("journal event %d.%d: %w", r.Index, r.N, err)
	}
	return JournalEvent(r.Index, r.N, e), nil
}

// JournalEvent returns a stored event as the API shows it: the n-th of log entry index.
func JournalEvent(index uint64, n uint32, e *fsmpb.Event) *kvgatev1.JournalEvent {
	m := &kvgatev1.JournalEvent{
		Index:         index,
		N:             n,
		LedgerTime:    e.GetLedgerTime(),
		Pool:          e.GetPool(),
		Kind:          e.GetKind(),
		TicketId:      e.GetTicket(),
		SessionId:     e.GetSession(),
		HolderId:      e.GetHolder(),
		GroupId:       e.GetGroup(),
		Tokens:        e.GetTokens(),
		Grant:         e.GetGrant(),
		Epoch:         int64(e.GetEpoch()),
		Reason:        e.GetReason(),
		ReservedAfter: e.GetReservedAfter(),
		CeilingAfter:  e.GetCeilingAfter(),
		Priority:      e.GetPriority(),
		Deadline:      e.GetDeadline(),
		Detail:        e.GetDetail(),
		WaitingAfter:  e.GetWaitingAfter(),
		Engines:       e.GetEngines(),
		PinId:         e.GetPin(),
		InFlight:      e.GetInFlight(),
		By:            e.GetBy(),
	}
	if e.GetWallTime() != 0 {
		m.WallTime = timestamppb.New(time.Unix(0, e.GetWallTime()))
	}
	if e.GetWait() != 0 {
		m.Wait = durationpb.New(time.Duration(e.GetWait()))
	}
	if e.GetTicket() != "" && e.GetGrant() != 0 {
		m.LeaseId = ledger.LeaseID(e.GetEpoch(), e.GetTicket())
	}
	journalExtras(e, m)
	return m
}

// journalExtras adds what only some kinds of events have.
func journalExtras(e *fsmpb.Event, m *kvgatev1.JournalEvent) {
	if a := e.GetArrival(); a != nil {
		m.Arrival = &kvgatev1.Arrival{
			PromptTokens: a.PromptTokens, MaxNewTokens: a.MaxNewTokens, ReservationTokens: a.ReservationTokens,
			Mode: max(kvgatev1.Mode(a.Mode), kvgatev1.Mode_MODE_TRAIN), Protected: a.Protected, PoolWait: a.PoolWait,
		}
		if a.MaxWait != nil {
			m.Arrival.MaxWait = durationpb.New(time.Duration(*a.MaxWait))
		}
		if a.Ttl > 0 {
			m.Arrival.Ttl = durationpb.New(time.Duration(a.Ttl))
		}
	}
	if u := e.GetMeasured(); u != nil {
		m.Measured = &kvgatev1.Measured{
			CapacityTokens: u.Capacity, UsedTokens: u.Used, EvictableTokens: u.Evictable, Pressure: u.Pressure,
			EvictionRate: u.EvictionRate, RunningRequests: u.Running, QueuedRequests: u.Queued,
			HealthyEngines: u.Healthy, KnownEngines: u.Known,
		}
	}
	if e.GetSettingsAfter() != nil {
		m.SettingsBefore = settingsMessage(fsm.DecodeSettings(e.SettingsBefore))
		m.SettingsAfter = settingsMessage(fsm.DecodeSettings(e.SettingsAfter))
	}
}
