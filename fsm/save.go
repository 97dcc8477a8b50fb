package fsm

import (
	"bytes"
	"context"
	"io"

	"kvgate/store"
)

// Save writes an archive of this node's state as it is now, and of the journal up to there, to w. It reads in
// transactions of its own: entries are applied meanwhile. On a follower that lags the state is as old as the
// node's; the header says which index it belongs to.
func (r *Replica) Save(ctx context.Context, w io.Writer) (store.Header, error) {
	header := store.Header{WallTime: wallClock(), NodeVersions: map[string]string{}}
	for _, n := range r.Status().Nodes {
		header.Members = append(header.Members, store.Member{ID: n.ID, Address: n.Address, APIAddress: n.APIAddress, Voter: n.Voter})
		if n.Version != "" {
			header.NodeVersions[n.ID] = n.Version
		}
	}
	return r.machine.save(ctx, w, header)
}

// Save writes an archive of what is read, which turns the data directory of a stopped node into one.
func (o *Offline) Save(ctx context.Context, w io.Writer) (store.Header, error) {
	return o.machine.save(ctx, w, o.Header)
}

// save takes the members, their versions and the wall time from about; the rest is what the image says.
func (m *Machine) save(ctx context.Context, w io.Writer, about store.Header) (store.Header, error) {
	if err := m.catchUp(ctx); err != nil {
		return store.Header{}, err
	}
	w = &interruptible{ctx, w}
	image, err := m.state.Snapshot()
	if err != nil {
		return store.Header{}, err
	}
	defer image.Release()
	header, err := headerOf(image)
	if err != nil {
		return header, err
	}
	header.NodeVersions, header.Members, header.WallTime = about.NodeVersions, about.Members, about.WallTime.UTC()
	header.JournalFirst = m.trail.First()
	out := &held{}
	aw, err := store.NewArchiveWriter(out, header)
	if err != nil {
		return header, err
	}
	if err := image.SaveTo(aw); err != nil {
		return header, err
	}
	image.Release()
	if err := out.release(w); err != nil {
		return header, err
	}
	// Events are written before the state that they led to, so up to its index there are all of them.
	if err := m.trail.SaveTo(aw, header.Index); err != nil {
		return header, err
	}
	return header, aw.Close()
}

// held keeps what is written in memory until it is released to a writer: while the image is open, the file it
// is of grows with every change, which a slow reader must not prolong.
type held struct {
	bytes.Buffer
	w io.Writer
}

func (h *held) Write(b []byte) (int, error) {
	if h.w != nil {
		return h.w.Write(b)
	}
	return h.Buffer.Write(b)
}

func (h *held) release(w io.Writer) error {
	h.w = w
	_, err := h.Buffer.WriteTo(w)
	h.Buffer = bytes.Buffer{}
	return err
}

// headerOf reads from the image what an archive says of it.
func headerOf(image *store.StateSnapshot) (store.Header, error) {
	var h store.Header
	h.Index, h.Term = image.Applied()
	err := image.ForEach(store.BucketMeta, func(k, v []byte) error {
		row, err := decodeRow(store.BucketMeta, k, v)
		if err == nil && row.Meta != nil {
			h.ClusterID, h.LedgerTime = row.Meta.ClusterID, int64(row.Meta.Now)
		}
		return err
	})
	return h, err
}

// interruptible ends a long write when its context does.
type interruptible struct {
	ctx context.Context
	w   io.Writer
}

func (i *interruptible) Write(b []byte) (int, error) {
	if err := context.Cause(i.ctx); err != nil {
		return 0, err
	}
	return i.w.Write(b)
}
