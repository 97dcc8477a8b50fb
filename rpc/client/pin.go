package client

import (
	"context"
	"strconv"
	"time"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

// pinPage is how many pins one page has.
const pinPage = 1000

// PinRequest asks to keep a conversation prefix from eviction for a while.
type PinRequest struct {
	// Pool is the engine fleet; empty means the client's, see WithPool.
	Pool string
	// ID names the pin, 1 to 256 bytes. The same one again renews it.
	ID string
	// Tokens is the prefix's length; or TokenIDs the prefix itself, for engines that can hold it.
	Tokens   int64
	TokenIDs []int32
	// Session is the one the pin ends with, if any.
	Session string
	// TTL in whole seconds; the coordinator clamps it to 300 to 3600 s. 0 means 300 s.
	TTL time.Duration
	// EngineURL is the engine to hold it; by default the session's.
	EngineURL string
}

func (r *PinRequest) message(pool string) *kvgatev1.PinPrefixRequest {
	msg := &kvgatev1.PinPrefixRequest{
		Pool: pool, PinId: r.ID, SessionId: r.Session, Tokens: r.Tokens, TokenIds: r.TokenIDs, EngineUrl: r.EngineURL,
	}
	if r.TTL != 0 {
		msg.Ttl = strconv.FormatInt(int64(r.TTL.Round(time.Second)/time.Second), 10)
	}
	return msg
}

// Pin makes or renews a pin. The error's Name is "pins_disabled" when the pool allows none, and
// "pin_budget_exhausted" when its share for pins is used up.
func (c *Client) Pin(ctx context.Context, r PinRequest) (*kvgatev1.Pin, error) {
	msg := r.message(c.poolName(r.Pool))
	if err := validate(msg); err != nil {
		return nil, err
	}
	resp, err := call(ctx, c, c.sessions.PinPrefix, msg)
	return resp.GetPin(), err
}

// Unpin ends a pin, and says whether there was one.
func (c *Client) Unpin(ctx context.Context, pool, id string) (bool, error) {
	msg := &kvgatev1.UnpinPrefixRequest{Pool: c.poolName(pool), PinId: id}
	if err := validate(msg); err != nil {
		return false, err
	}
	resp, err := call(ctx, c, c.sessions.UnpinPrefix, msg)
	return resp.GetUnpinned(), err
}

// Pins lists the pool's pins, or those of one session.
func (c *Client) Pins(ctx context.Context, pool, session string) ([]*kvgatev1.Pin, error) {
	var found []*kvgatev1.Pin
	msg := &kvgatev1.ListPinsRequest{Pool: c.poolName(pool), SessionId: session, PageSize: pinPage}
	if err := validate(msg); err != nil {
		return nil, err
	}
	for {
		resp, err := call(ctx, c, c.sessions.ListPins, msg)
		if err != nil {
			return nil, err
		}
		found = append(found, resp.GetPins()...)
		if resp.GetNextPageToken() == "" {
			return found, nil
		}
		msg.PageToken = resp.GetNextPageToken()
	}
}
