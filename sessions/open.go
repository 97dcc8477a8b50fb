package sessions

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// OpenRequest opens a session, or refreshes the one that is open.
type OpenRequest struct {
	Pool, ID, Group string
	Kind            Kind
	// IdleTimeout closes the session when it had no ticket for so long; 0 means never, negative the
	// default of its kind.
	IdleTimeout time.Duration
	// Engine is where a streaming session lives. It has acknowledged the open already, see
	// [Client.OpenSession].
	Engine string
}

func (r *OpenRequest) validate() error {
	switch {
	case r.ID == "":
		return fieldError("sessionId", `""`, "1 to 256 bytes")
	case r.Kind > Bind:
		return fieldError("kind", r.Kind, "SESSION_KIND_RADIX, SESSION_KIND_STREAMING or SESSION_KIND_BIND")
	case r.IdleTimeout > maxDuration:
		return fieldError("idleTimeout", r.IdleTimeout, "0s (never) to 8760h")
	case r.Kind == Streaming && r.Engine == "":
		return fieldError("engineUrl", `""`, "the engine that the streaming session lives on")
	}
	return nil
}

// Open opens a session. One that is open is answered as it is, with its idle clock started anew; only
// what a ticket or a bind opened takes over what the request says. A closed id starts a new incarnation.
//
// Errors: *FieldError, ErrKind, ErrClosing while the id is closing, ErrUnknownEngine when a streaming
// session names an engine that the pool does not list.
func (t *Table) Open(r OpenRequest) (View, error) {
	if _, err := t.CheckOpen(r); err != nil {
		return View{}, err
	}
	r.Engine = EngineURL(r.Engine)
	p := t.at(r.Pool)
	if old := p.byID[r.ID]; old != nil && old.State == Open {
		return t.reopen(old, r), nil
	}
	return t.view(t.create(p, r, "")), nil
}

// CheckOpen answers the error that Open would, and changes nothing. call says that a streaming session must
// be opened on its engine first, because it is not open there as far as the table knows.
func (t *Table) CheckOpen(r OpenRequest) (call bool, err error) {
	if err := r.validate(); err != nil {
		return false, err
	}
	r.Engine = EngineURL(r.Engine)
	p := t.pools[r.Pool]
	if r.Kind == Streaming && (p == nil || !p.lists(r.Engine)) {
		return false, fmt.Errorf("%w: engine %q, pool %q", ErrUnknownEngine, r.Engine, r.Pool)
	}
	old := t.find(r.Pool, r.ID)
	call = r.Kind == Streaming
	switch {
	case old == nil || old.State > Closing:
		return call, nil
	case old.State == Closing:
		return false, fmt.Errorf("%w: %q", ErrClosing, r.ID)
	case old.Implicit:
		return call, nil
	case r.Kind != KindUnspecified && r.Kind != old.Kind:
		return false, fmt.Errorf("%w: %q is %v, asked for %v", ErrKind, old.ID, old.Kind, r.Kind)
	case call && r.Engine != old.Engine:
		return false, fmt.Errorf("%w: %q lives on %q, asked for %q", ErrKind, old.ID, old.Engine, r.Engine)
	}
	return call && old.EngineLost, nil
}

// Idle returns the idle timeout that the session will have; 0 means never.
func (r *OpenRequest) Idle() time.Duration {
	if r.Kind == KindUnspecified {
		return idleTimeout(Radix, r.IdleTimeout)
	}
	return idleTimeout(r.Kind, r.IdleTimeout)
}

// create opens a session whose id is free or closed. because says who opened it when it was not Open.
func (t *Table) create(p *pool, r OpenRequest, because string) *session {
	kind := r.Kind
	if kind == KindUnspecified {
		kind = Radix
	}
	row := SessionRow{
		Pool: p.name, ID: r.ID, Kind: kind, Group: r.Group, State: Open, Implicit: because != "",
		IdleTimeout: idleTimeout(kind, r.IdleTimeout), OpenedAt: t.now, ActiveAt: t.now,
	}
	if kind == Streaming {
		row.Engine = r.Engine
	}
	if old := p.byID[r.ID]; old != nil {
		row.Reused = kind != Bind && (old.Kind != Bind || old.Reused)
		t.forget(old)
	}
	row.Seq = t.nextSeq()
	s := t.add(p, row)
	p.Totals.Opened++
	t.touch(p)
	t.emit(p, s, Event{Kind: SessionOpened, Engines: listOf(row.Engine), Reason: because})
	return s
}

func listOf(engine string) []string {
	if engine == "" {
		return nil
	}
	return []string{engine}
}

func idleTimeout(kind Kind, asked time.Duration) time.Duration {
	switch {
	case asked >= 0:
		return asked
	case kind == Radix:
		return 0
	}
	return idleDefault
}

// reopen answers an Open of a session that is open. A streaming one whose engine was restarted has been
// opened there again.
func (t *Table) reopen(s *session, r OpenRequest) View {
	if s.Implicit {
		t.adopt(s, r)
	}
	if r.Kind == Streaming {
		s.EngineLost = false
	}
	s.ActiveAt = t.now
	t.changed(s)
	return t.view(s)
}

// adopt makes a session that a ticket or a bind opened what its Open says it is.
func (t *Table) adopt(s *session, r OpenRequest) {
	s.Implicit, s.Kind = false, r.Kind
	if s.Kind == KindUnspecified {
		s.Kind = Radix
	}
	if s.Kind == Streaming {
		s.Engine = r.Engine
	}
	s.IdleTimeout = idleTimeout(s.Kind, r.IdleTimeout)
	if r.Group != "" && r.Group != s.Group {
		t.leave(s)
		s.Group = r.Group
		t.join(s)
	}
}

// Touch starts the idle clock of an open session anew. Errors: ErrUnknown, ErrClosing.
func (t *Table) Touch(pool, id string) (View, error) {
	s, err := t.mustBeOpen(pool, id)
	if err != nil {
		return View{}, err
	}
	s.ActiveAt = t.now
	t.changed(s)
	return t.view(s), nil
}

func (t *Table) mustBeOpen(pool, id string) (*session, error) {
	s := t.find(pool, id)
	switch {
	case s == nil:
		return nil, fmt.Errorf("%w: %q", ErrUnknown, id)
	case s.State != Open:
		return nil, fmt.Errorf("%w: %q", ErrClosing, id)
	}
	return s, nil
}

// BindRequest records a placement that a router made.
type BindRequest struct {
	Pool, ID, Engine string
	DPRank           int32
	// TTL slides; 0 means for as long as the session is open.
	TTL time.Duration
}

// Bind records a placement in place of an earlier one. A session that is not known is opened, as a bind
// session until a ticket or an Open says otherwise.
//
// Errors: *FieldError, ErrClosing while the id is closing or its record is kept, ErrUnknownEngine when
// the pool lists engines and this is none of them.
func (t *Table) Bind(r BindRequest) (View, error) {
	r.Engine = EngineURL(r.Engine)
	if err := r.validate(); err != nil {
		return View{}, err
	}
	p := t.at(r.Pool)
	if len(p.Engines) > 0 && !p.lists(r.Engine) {
		return View{}, fmt.Errorf("%w: engine %q, pool %q", ErrUnknownEngine, r.Engine, r.Pool)
	}
	s := p.byID[r.ID]
	if s == nil {
		s = t.create(p, OpenRequest{ID: r.ID, Kind: Bind, IdleTimeout: -1}, "bind")
	}
	if s.State != Open {
		return View{}, fmt.Errorf("%w: %q", ErrClosing, r.ID)
	}
	reason := ""
	if s.Binding != nil {
		reason = "was " + s.Binding.Engine
	}
	s.Binding = &Binding{Engine: r.Engine, DPRank: r.DPRank, TTL: r.TTL, Since: t.now}
	s.ActiveAt = t.now
	t.changed(s)
	t.emit(p, s, Event{Kind: SessionBound, Engines: listOf(r.Engine), Reason: reason})
	return t.view(s), nil
}

func (r *BindRequest) validate() error {
	switch {
	case r.ID == "":
		return fieldError("sessionId", `""`, "1 to 256 bytes")
	case r.Engine == "":
		return fieldError("engineUrl", `""`, "the engine that the session was placed on")
	case r.DPRank < 0:
		return fieldError("dpRank", r.DPRank, "0 or more")
	case r.TTL < 0 || r.TTL > maxDuration:
		return fieldError("ttl", r.TTL, "0s (for as long as the session is open) to 8760h")
	}
	return nil
}

func (t *Table) unbind(s *session, reason string) {
	engine := s.Binding.Engine
	s.Binding = nil
	t.changed(s)
	t.emit(s.pool, s, Event{Kind: SessionUnbound, Engines: listOf(engine), Reason: reason})
}

// lists reports whether discovery lists the engine.
func (p *pool) lists(engine string) bool {
	_, found := p.engine(engine)
	return found
}

func (p *pool) engine(url string) (int, bool) {
	return slices.BinarySearchFunc(p.Engines, url, func(e Engine, url string) int { return strings.Compare(e.URL, url) })
}
