package main

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

func TestRelease(t *testing.T) {
	tests := []struct {
		args   []string
		want   *kvgatev1.ReleaseRequest
		found  bool
		stdout string
	}{
		{[]string{"t"}, &kvgatev1.ReleaseRequest{TicketId: "t"}, true, "released  t"},
		{[]string{"--ticket", "t", "--pool", "p"}, &kvgatev1.ReleaseRequest{TicketId: "t", Pool: "p"}, false, "nothing to release  t"},
		{[]string{"--lease", "3:t", "--grant", "4711", "--holder", "h"}, &kvgatev1.ReleaseRequest{LeaseId: "3:t", Grant: 4711, HolderId: "h"}, true, "released  3:t"},
		{[]string{"t", "--prompt-tokens", "9", "--completion-tokens", "8", "--cached-tokens", "7", "--engine-url", "http://e", "--outcome", "stop"},
			&kvgatev1.ReleaseRequest{TicketId: "t", Usage: &kvgatev1.Usage{PromptTokens: 9, CompletionTokens: 8, CachedTokens: 7, EngineUrl: "http://e", Outcome: "stop"}},
			true, "released  t"},
	}
	for _, test := range tests {
		f := &fake{release: func(r *kvgatev1.ReleaseRequest) (*kvgatev1.ReleaseResponse, error) {
			if !proto.Equal(r, test.want) {
				t.Errorf("%v: sent %v, want %v", test.args, r, test.want)
			}
			return &kvgatev1.ReleaseResponse{Released: test.found}, nil
		}}
		at(t, f, append([]string{"release"}, test.args...)...).expect(t, result{stdout: test.stdout})
	}
	kvgate(t, "release").expect(t, result{code: exitUsage, stderr: "kvgate: ticket: missing: give it as argument or as --ticket"})
}

func TestCancel(t *testing.T) {
	f := &fake{cancel: func(r *kvgatev1.CancelRequest) (*kvgatev1.CancelResponse, error) {
		if r.TicketId != "t" || r.Pool != "p" {
			t.Errorf("cancelled %v", r)
		}
		return &kvgatev1.CancelResponse{Was: kvgatev1.CancelState_CANCEL_STATE_LEASED}, nil
	}}
	at(t, f, "cancel", "t", "--pool", "p").expect(t, result{stdout: "ticket  t\nwas     leased"})
	at(t, f, "cancel", "--ticket", "t", "--pool", "p", "--output", "json").expect(t, result{stdout: "{\n  \"was\": \"CANCEL_STATE_LEASED\"\n}"})
}

func TestRenew(t *testing.T) {
	f := &fake{renew: func(r *kvgatev1.RenewRequest) (*kvgatev1.RenewResponse, error) {
		want := &kvgatev1.RenewRequest{LeaseIds: []string{"3:a", "3:b"}, Grants: []uint64{1, 2}, Ttl: durationpb.New(20 * time.Minute)}
		if !proto.Equal(r, want) {
			t.Errorf("sent %v, want %v", r, want)
		}
		return &kvgatev1.RenewResponse{Leases: []*kvgatev1.RenewedLease{
			{LeaseId: "3:a", Renewed: true, ExpiresIn: durationpb.New(20 * time.Minute)}, {LeaseId: "3:b"},
		}}, nil
	}}
	at(t, f, "renew", "3:a", "3:b", "--ttl", "20m", "--grant", "1", "--grant", "2").expect(t, result{code: exitFailed, stdout: `
LEASE  STATE    EXPIRES IN
3:a    renewed      20m00s
3:b    gone              -
`, stderr: "kvgate: gone: 1 of 2 leases"})
	kvgate(t, "renew").expect(t, result{code: exitUsage, stderr: "kvgate: renew: a lease is missing: use lease ids as `kvgate leases` lists them"})
	kvgate(t, "renew", "a", "b", "--grant", "1").expect(t, result{code: exitUsage, stderr: "kvgate: grant: given 1 times: use it once for each of the 2 leases"})
	kvgate(t, "renew", "a", "--grant", "x").expect(t, result{code: exitUsage, stderr: `kvgate: grant: "x" is not allowed: use a whole number, 0 or above`})
	kvgate(t, "renew", "a", "--ttl", "0s").expect(t, result{code: exitUsage, stderr: `kvgate: ttl: "0s" is not allowed: use a duration above 0s`})
}
