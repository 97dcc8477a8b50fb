// Package rules spares most requests the validator. The rules are in the protos and protovalidate knows them; but
// it takes some 2 µs, for each string mostly, and a process that asks for many tickets at once spends a tenth of its own and
// the leader's time on that. So whoever validates looks first whether a request is as plain as nearly all are: short
// names in ASCII, numbers in range. Such a request keeps every rule, which the tests hold against protovalidate;
// anything else is for the validator to judge.
package rules

import (
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "kvgate/rpc/kvgate/v1"
)

const (
	maxName   = 256
	maxTokens = 1_000_000_000_000
	// maxWait is in seconds, and below what any duration may be.
	maxWait = 86_400
)

// Validate is v.Validate, sooner.
func Validate(v protovalidate.Validator, m proto.Message) error {
	if request(m) {
		return nil
	}
	return v.Validate(m)
}

// request reports whether a message is one that plainly keeps all rules.
func request(m proto.Message) bool {
	switch m := m.(type) {
	case *v1.AcquireRequest:
		return acquire(m)
	case *v1.ReleaseRequest:
		return names(m.GetPool(), m.GetTicketId(), m.GetLeaseId(), m.GetHolderId()) &&
			(m.GetTicketId() != "" || m.GetLeaseId() != "") && usage(m.GetUsage())
	}
	return false
}

func acquire(m *v1.AcquireRequest) bool {
	return m != nil && reservation(m) && m.TicketId != "" && names(m.Pool, m.TicketId, m.SessionId, m.GroupId, m.HolderId, m.Rid) &&
		m.Mode >= v1.Mode_MODE_UNSPECIFIED && m.Mode <= v1.Mode_MODE_EVAL && wait(m.MaxWait) && (m.Ttl == nil || wait(m.Ttl) && m.Ttl.Seconds > 0)
}

// reservation: given outright, or by what it is made of.
func reservation(m *v1.AcquireRequest) bool {
	made := m.PromptTokens + m.MaxNewTokens
	if !tokens(m.PromptTokens, m.MaxNewTokens, m.GetReservationTokens()) {
		return false
	}
	return m.ReservationTokens == nil && made > 0 || m.GetReservationTokens() > 0 && made == 0
}

func usage(u *v1.Usage) bool {
	return u == nil || tokens(u.PromptTokens, u.CompletionTokens, u.CachedTokens) && len(u.EngineUrl) <= maxName && len(u.Outcome) <= 64
}

func wait(d *durationpb.Duration) bool {
	return d == nil || d.Seconds >= 0 && d.Seconds < maxWait && d.Nanos >= 0 && d.Nanos < 1e9
}

func tokens(all ...int64) bool {
	for _, n := range all {
		if n < 0 || n > maxTokens {
			return false
		}
	}
	return true
}

// names reports whether texts are empty, or short and printable ASCII.
func names(all ...string) bool {
	for _, s := range all {
		if len(s) > maxName {
			return false
		}
		for i := range len(s) {
			if s[i] < ' ' || s[i] > '~' {
				return false
			}
		}
	}
	return true
}
