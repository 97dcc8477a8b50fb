package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// Opening a damaged file with bbolt can end the process: it rebuilds the free list in a goroutine of its own,
// where a panic or a fault on the memory map cannot be recovered. So the pages are walked with plain reads
// first. The layout is bbolt's version 2, unchanged since it was written; integers are in machine order.

const (
	pageHeader   = 16
	elementSize  = 16
	metaSize     = 64
	boltMagic    = 0xED0CDAED
	boltVersion  = 2
	noFreelist   = ^uint64(0)
	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagFreelist = 0x10
	flagBucket   = 0x01
	maxDepth     = 32
	minPage      = 1 << 10
	maxPage      = 1 << 16
)

var native = binary.NativeEndian

// visitRow is called for each row of a file in key order; the slices are valid during the call only.
type visitRow func(bucket string, key, value []byte) error

type boltMeta struct {
	pageSize int64
	root     uint64
	freelist uint64
	pages    uint64 // page numbers in use are below
	txid     uint64
}

type pageWalker struct {
	r     io.ReaderAt
	size  int64
	meta  boltMeta
	seen  []uint64 // bit set of pages reached
	bufs  [maxDepth][]byte
	visit visitRow
}

// walkFile checks the structure of a bbolt file of flat buckets and visits its rows. visit may be nil.
// Errors: [ErrDamaged] with page and reason, what visit returned, or an error of the operating system.
func walkFile(path string, visit visitRow) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("check file: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("check file: %w", err)
	}
	w := &pageWalker{r: f, size: st.Size(), visit: visit}
	if err := w.run(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func (w *pageWalker) run() error {
	if err := w.readMetas(); err != nil {
		return err
	}
	w.seen = make([]uint64, w.meta.pages/64+1)
	if err := w.page(w.meta.root, 0, bounds{}, w.rootLeaf); err != nil {
		return err
	}
	return w.checkFreelist()
}

// readMetas picks the newer of the two valid meta pages, as bbolt does.
func (w *pageWalker) readMetas() error {
	first, err := w.readMeta(0)
	if err != nil && !errors.Is(err, ErrDamaged) {
		return err
	}
	pageSize := int64(os.Getpagesize())
	if err == nil {
		pageSize = first.pageSize
	}
	second, err2 := w.readMeta(pageSize)
	if err2 != nil && !errors.Is(err2, ErrDamaged) {
		return err2
	}
	switch {
	case err != nil && err2 != nil:
		return fmt.Errorf("%w: both meta pages are invalid", ErrDamaged)
	case err != nil, err2 == nil && second.txid > first.txid:
		first = second
	}
	if first.pageSize != pageSize || first.pages < 3 || first.pages > uint64(w.size/pageSize)+1 {
		return fmt.Errorf("%w: %d pages of %d bytes do not fit a file of %d bytes", ErrDamaged, first.pages, first.pageSize, w.size)
	}
	w.meta = first
	return nil
}

func (w *pageWalker) readMeta(off int64) (boltMeta, error) {
	var b [pageHeader + metaSize]byte
	if _, err := w.r.ReadAt(b[:], off); err == io.EOF {
		return boltMeta{}, fmt.Errorf("%w: file ends within a meta page", ErrDamaged)
	} else if err != nil {
		return boltMeta{}, fmt.Errorf("read meta page: %w", err)
	}
	m := b[pageHeader:]
	sum := fnv.New64a()
	sum.Write(m[:56])
	if native.Uint32(m) != boltMagic || native.Uint32(m[4:]) != boltVersion || sum.Sum64() != native.Uint64(m[56:]) {
		return boltMeta{}, fmt.Errorf("%w: meta page at offset %d is invalid", ErrDamaged, off)
	}
	meta := boltMeta{
		pageSize: int64(native.Uint32(m[8:])), root: native.Uint64(m[16:]), freelist: native.Uint64(m[32:]),
		pages: native.Uint64(m[40:]), txid: native.Uint64(m[48:]),
	}
	if meta.pageSize < minPage || meta.pageSize > maxPage || meta.pageSize&(meta.pageSize-1) != 0 {
		return meta, fmt.Errorf("%w: page size %d", ErrDamaged, meta.pageSize)
	}
	return meta, nil
}

// bounds are the keys between which a subtree must lie: lo <= key < hi, nil where there is none.
type bounds struct{ lo, hi []byte }

// load reads a page with its overflow and marks it as reached; a page reached twice is damage.
func (w *pageWalker) load(id uint64, depth int) ([]byte, error) {
	if depth >= maxDepth {
		return nil, fmt.Errorf("%w: page %d: tree is deeper than %d", ErrDamaged, id, maxDepth)
	}
	var head [pageHeader]byte
	if id < 2 || id >= w.meta.pages {
		return nil, fmt.Errorf("%w: page %d is outside 2 to %d", ErrDamaged, id, w.meta.pages-1)
	}
	if err := w.readAt(head[:], id); err != nil {
		return nil, err
	}
	count := uint64(native.Uint32(head[12:])) + 1
	if native.Uint64(head[:]) != id || id+count > w.meta.pages {
		return nil, fmt.Errorf("%w: page %d has a wrong number or length", ErrDamaged, id)
	}
	for i := id; i < id+count; i++ {
		if w.seen[i/64]&(1<<(i%64)) != 0 {
			return nil, fmt.Errorf("%w: page %d is referenced twice", ErrDamaged, i)
		}
		w.seen[i/64] |= 1 << (i % 64)
	}
	length := int64(count) * w.meta.pageSize
	if off := int64(id) * w.meta.pageSize; off+length > w.size {
		return nil, fmt.Errorf("%w: page %d: file ends within it", ErrDamaged, id)
	}
	if int64(cap(w.bufs[depth])) < length {
		w.bufs[depth] = make([]byte, length)
	}
	b := w.bufs[depth][:length]
	return b, w.readAt(b, id)
}

func (w *pageWalker) readAt(b []byte, id uint64) error {
	_, err := w.r.ReadAt(b, int64(id)*w.meta.pageSize)
	if err == io.EOF {
		return fmt.Errorf("%w: page %d: file ends within it", ErrDamaged, id)
	}
	if err != nil {
		return fmt.Errorf("read page %d: %w", id, err)
	}
	return nil
}

// leafFunc receives each element of a leaf.
type leafFunc func(flags uint32, key, value []byte, depth int) error

func (w *pageWalker) page(id uint64, depth int, in bounds, leaf leafFunc) error {
	b, err := w.load(id, depth)
	if err != nil {
		return err
	}
	switch flags := native.Uint16(b[8:]); flags {
	case flagBranch:
		err = w.branch(b, depth, in, leaf)
	case flagLeaf:
		err = walkLeaf(b, in, func(flags uint32, k, v []byte) error { return leaf(flags, k, v, depth) })
	default:
		err = fmt.Errorf("%w: type %#x is neither branch nor leaf", ErrDamaged, flags)
	}
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

func (w *pageWalker) branch(b []byte, depth int, in bounds, leaf leafFunc) error {
	n := int(native.Uint16(b[10:]))
	if n == 0 || pageHeader+n*elementSize > len(b) {
		return fmt.Errorf("%w: branch of %d elements", ErrDamaged, n)
	}
	key := func(i int) ([]byte, error) {
		at := pageHeader + i*elementSize
		e := b[at:]
		return slice(b, at, n, native.Uint32(e), native.Uint32(e[4:]))
	}
	next, err := key(0)
	for i := 0; i < n && err == nil; i++ {
		child := bounds{lo: next, hi: in.hi}
		if err := inOrder(next, in, i == 0); err != nil {
			return err
		}
		if i+1 < n {
			if next, err = key(i + 1); err != nil {
				return err
			}
			if bytes.Compare(child.lo, next) >= 0 {
				return fmt.Errorf("%w: keys out of order", ErrDamaged)
			}
			child.hi = next
		}
		err = w.page(native.Uint64(b[pageHeader+i*elementSize+8:]), depth+1, child, leaf)
	}
	return err
}

func walkLeaf(b []byte, in bounds, fn func(flags uint32, key, value []byte) error) error {
	n := int(native.Uint16(b[10:]))
	if pageHeader+n*elementSize > len(b) {
		return fmt.Errorf("%w: leaf of %d elements", ErrDamaged, n)
	}
	var prev []byte
	for i := range n {
		at := pageHeader + i*elementSize
		e := b[at:]
		pos, ksize, vsize := native.Uint32(e[4:]), native.Uint32(e[8:]), native.Uint32(e[12:])
		key, err := slice(b, at, n, pos, ksize)
		if err != nil {
			return err
		}
		value, err := slice(b, at+int(ksize), n, pos, vsize)
		if err != nil {
			return err
		}
		if err := inOrder(key, in, true); err != nil {
			return err
		}
		if ksize == 0 || i > 0 && bytes.Compare(prev, key) >= 0 {
			return fmt.Errorf("%w: keys out of order", ErrDamaged)
		}
		prev = key
		if err := fn(native.Uint32(e), key, value); err != nil {
			return err
		}
	}
	return nil
}

func inOrder(key []byte, in bounds, checkLow bool) error {
	if checkLow && in.lo != nil && bytes.Compare(key, in.lo) < 0 || in.hi != nil && bytes.Compare(key, in.hi) >= 0 {
		return fmt.Errorf("%w: key lies outside its branch", ErrDamaged)
	}
	return nil
}

// slice cuts length bytes at pos bytes after the element at at, which must lie behind all n elements.
func slice(b []byte, at, n int, pos, length uint32) ([]byte, error) {
	from := uint64(at) + uint64(pos)
	to := from + uint64(length)
	if to > uint64(len(b)) || from < uint64(pageHeader+n*elementSize) {
		return nil, fmt.Errorf("%w: element lies outside its page", ErrDamaged)
	}
	return b[from:to:to], nil
}

// rootLeaf walks one bucket: a tree of its own or, when small, a page within the value.
func (w *pageWalker) rootLeaf(flags uint32, name, value []byte, depth int) error {
	if flags != flagBucket || len(value) < 16 {
		return fmt.Errorf("%w: %q is no bucket", ErrDamaged, name)
	}
	bucket := string(name)
	row := func(flags uint32, k, v []byte) error {
		if flags != 0 {
			return fmt.Errorf("%w: bucket %q holds an element of type %#x", ErrDamaged, bucket, flags)
		}
		if w.visit == nil {
			return nil
		}
		return w.visit(bucket, k, v)
	}
	if root := native.Uint64(value); root != 0 {
		return w.page(root, depth+1, bounds{}, func(f uint32, k, v []byte, _ int) error { return row(f, k, v) })
	}
	inline := value[16:]
	if len(inline) < pageHeader || native.Uint16(inline[8:]) != flagLeaf {
		return fmt.Errorf("%w: bucket %q has no valid page", ErrDamaged, bucket)
	}
	return walkLeaf(inline, bounds{}, row)
}

// checkFreelist checks a stored list of free pages; files written with NoFreelistSync have none.
func (w *pageWalker) checkFreelist() error {
	if w.meta.freelist == noFreelist {
		return nil
	}
	b, err := w.load(w.meta.freelist, 0)
	if err != nil {
		return err
	}
	if native.Uint16(b[8:]) != flagFreelist {
		return fmt.Errorf("%w: page %d is no free list", ErrDamaged, w.meta.freelist)
	}
	n, at := uint64(native.Uint16(b[10:])), uint64(pageHeader)
	if n == 0xFFFF {
		n, at = native.Uint64(b[at:]), at+8
	}
	if n > (uint64(len(b))-at)/8 {
		return fmt.Errorf("%w: free list of %d pages", ErrDamaged, n)
	}
	for ; n > 0; n, at = n-1, at+8 {
		id := native.Uint64(b[at:])
		if id < 2 || id >= w.meta.pages || w.seen[id/64]&(1<<(id%64)) != 0 {
			return fmt.Errorf("%w: page %d cannot be free", ErrDamaged, id)
		}
		w.seen[id/64] |= 1 << (id % 64)
	}
	return nil
}
