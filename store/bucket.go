package store

import (
	"fmt"

	"go.etcd.io/bbolt"
)

// Bucket names one kind of row. Numbers are never written to disk, names are.
type Bucket uint8

const (
	BucketMeta Bucket = iota + 1
	BucketPools
	BucketCapacity
	BucketCounters
	BucketLeases
	BucketWaiters
	BucketMarks
	BucketHolders
	BucketSessions
	BucketOwed
	BucketPins
	BucketSessionMeta
	BucketSessionPools
	BucketSessionTickets
)

var bucketNames = [...]string{
	BucketMeta:     "meta",
	BucketPools:    "pools",
	BucketCapacity: "capacity",
	BucketCounters: "counters",
	BucketLeases:   "leases",
	BucketWaiters:  "waiters",
	BucketMarks:    "marks",
	BucketHolders:  "holders",
	BucketSessions: "sessions",
	BucketOwed:     "owed",
	BucketPins:     "pins",

	BucketSessionMeta:    "session_meta",
	BucketSessionPools:   "session_pools",
	BucketSessionTickets: "session_tickets",
}

// Buckets lists all buckets in the order of archives and hashes.
func Buckets() []Bucket {
	all := make([]Bucket, 0, len(bucketNames)-1)
	for b := BucketMeta; b.Valid(); b++ {
		all = append(all, b)
	}
	return all
}

// Valid reports whether b is one of the buckets above.
func (b Bucket) Valid() bool { return b >= BucketMeta && int(b) < len(bucketNames) }

func (b Bucket) String() string {
	if !b.Valid() {
		return fmt.Sprintf("bucket(%d)", uint8(b))
	}
	return bucketNames[b]
}

// ParseBucket returns the bucket of that name.
func ParseBucket(name string) (Bucket, bool) {
	for _, b := range Buckets() {
		if b.String() == name {
			return b, true
		}
	}
	return 0, false
}

// Change is one row written, or deleted when Value is nil. An empty Value that is not nil is stored.
type Change struct {
	Bucket Bucket
	Key    []byte
	Value  []byte
}

const (
	// MaxKey is the longest key of a row, in bytes.
	MaxKey = bbolt.MaxKeySize
	// MaxValue is the longest value of a row or event, in bytes. An archive holds a row in one chunk.
	MaxValue = 8 << 20
)

func (c *Change) validate() error {
	switch {
	case !c.Bucket.Valid():
		return fmt.Errorf("%w: %v is no bucket, allowed are 1 to %d", ErrBadChange, c.Bucket, len(bucketNames)-1)
	case len(c.Key) == 0 || len(c.Key) > MaxKey:
		return fmt.Errorf("%w: key in %v has %d bytes, allowed are 1 to %d", ErrBadChange, c.Bucket, len(c.Key), MaxKey)
	case len(c.Value) > MaxValue:
		return fmt.Errorf("%w: value in %v has %d bytes, allowed are up to %d", ErrBadChange, c.Bucket, len(c.Value), MaxValue)
	}
	return nil
}
