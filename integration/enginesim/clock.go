package enginesim

import (
	"context"
	"time"
)

// Clock is the virtual time of one engine, counted from its start. Methods are safe for concurrent use.
type Clock interface {
	// Now is the virtual time.
	Now() time.Duration
	// Wait blocks until virtual time t, a value on wake, or the end of ctx.
	Wait(ctx context.Context, t time.Duration, wake <-chan struct{})
}

// scaledClock runs speed times as fast as the system's clock. Under testing/synctest that is the
// bubble's clock, which makes it a manual one.
type scaledClock struct {
	start time.Time
	speed float64
}

func newScaledClock(speed float64) *scaledClock {
	return &scaledClock{start: time.Now(), speed: speed}
}

func (c *scaledClock) Now() time.Duration {
	return time.Duration(float64(time.Since(c.start)) * c.speed)
}

func (c *scaledClock) Wait(ctx context.Context, t time.Duration, wake <-chan struct{}) {
	left := t - c.Now()
	if left <= 0 {
		return
	}
	// One nanosecond more than the rounded quotient, or the last bit of virtual time would be spun away.
	timer := time.NewTimer(time.Duration(float64(left)/c.speed) + 1)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-wake:
	case <-ctx.Done():
	}
}

// wallSeconds is the real time as a Unix timestamp, for fields that clients expect to be one.
func wallSeconds() float64 {
	return float64(time.Now().UnixMicro()) / 1e6
}
