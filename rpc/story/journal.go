package story

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"google.golang.org/protobuf/encoding/protodelim"
)

// Journal reads a journal from its first kept event: it calls fn with every event, in order. It may be read several
// times, and tells the same each time; the events are the reader's to keep, and not to change.
type Journal func(fn func(*Event)) error

// Slice is a journal that is in memory.
func Slice(events []*Event) Journal {
	return func(fn func(*Event)) error {
		for _, e := range events {
			fn(e)
		}
		return nil
	}
}

// Spool keeps events on disk, so that a journal that is longer than memory can be read several times. The file is
// below the temporary directory and has no name: it goes with the process, however that ends. One goroutine at a time
// may use it.
type Spool struct {
	f    *os.File
	out  *bufio.Writer
	size int64
}

const spoolBuffer = 1 << 16

// NewSpool returns an empty spool.
func NewSpool() (*Spool, error) {
	f, err := os.CreateTemp("", "kvgate-spool-")
	if err != nil {
		return nil, fmt.Errorf("make room for a journal: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(fmt.Errorf("make room for a journal: %w", err), f.Close())
	}
	return &Spool{f: f, out: bufio.NewWriterSize(f, spoolBuffer)}, nil
}

// Append writes events behind those that are there, and returns where the first of them begins.
func (s *Spool) Append(events ...*Event) (at int64, err error) {
	at = s.size
	for _, e := range events {
		n, err := protodelim.MarshalTo(s.out, e)
		if err != nil {
			return at, fmt.Errorf("keep a journal below %s: %w", os.TempDir(), err)
		}
		s.size += int64(n)
	}
	return at, nil
}

// Flush makes what was appended readable.
func (s *Spool) Flush() error {
	if err := s.out.Flush(); err != nil {
		return fmt.Errorf("keep a journal below %s: %w", os.TempDir(), err)
	}
	return nil
}

// Each is a [Journal] of all that was flushed.
func (s *Spool) Each(fn func(*Event)) error {
	in := bufio.NewReaderSize(io.NewSectionReader(s.f, 0, s.size), spoolBuffer)
	for {
		e := &Event{}
		switch err := read(in, e); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		fn(e)
	}
}

// At reads n events that were flushed, from where one begins.
func (s *Spool) At(at int64, n int) ([]*Event, error) {
	in := bufio.NewReaderSize(io.NewSectionReader(s.f, at, s.size-at), 1<<10)
	out := make([]*Event, n)
	for i := range out {
		out[i] = &Event{}
		if err := read(in, out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func read(in *bufio.Reader, e *Event) error {
	err := protodelim.UnmarshalOptions{MaxSize: -1}.UnmarshalFrom(in, e)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read back a journal: %w", err)
	}
	return err
}

// Close gives the disk space back.
func (s *Spool) Close() error { return s.f.Close() }
