package store

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// ArchiveReader reads an archive of any origin: it never panics, and its memory is bounded by one chunk. Every
// refusal wraps [ErrTruncated], [ErrCorrupt], [ErrForeign] or [ErrNewerFormat] and names the place.
// Not safe for concurrent use.
type ArchiveReader struct {
	r      *bufio.Reader
	dec    *zstd.Decoder
	header Header
	offset int64
	sum    uint32
	err    error

	section    string
	open       bool
	sections   uint64
	total      uint64
	rows       uint64
	sectionSum uint32
	stored     []byte
	raw        []byte
	rest       []byte // what of raw is still to be handed out
	restRows   uint32
}

// NewArchiveReader reads and checks the header.
func NewArchiveReader(r io.Reader) (*ArchiveReader, error) {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxRaw))
	if err != nil {
		return nil, fmt.Errorf("set up decompression: %w", err)
	}
	a := &ArchiveReader{r: bufio.NewReaderSize(r, 64<<10), dec: dec}
	if err := a.readHeader(); err != nil {
		return nil, err
	}
	return a, nil
}

// Header returns the header.
func (a *ArchiveReader) Header() Header { return a.header }

func (a *ArchiveReader) readHeader() error {
	fixed := make([]byte, len(archiveMagic)+6)
	n, err := a.readSome(fixed)
	magic := string(fixed[:min(n, len(archiveMagic))])
	if err == nil || errors.Is(err, ErrTruncated) {
		if !strings.HasPrefix(archiveMagic, magic) {
			return fmt.Errorf("%w: it begins with %q: give a file written by snapshot save", ErrForeign, magic)
		}
	}
	if err != nil {
		return err
	}
	version := binary.BigEndian.Uint16(fixed[len(archiveMagic):])
	if version > ArchiveFormat {
		return fmt.Errorf("%w: archive format %d, this release reads up to %d: use the release that wrote it or a later one",
			ErrNewerFormat, version, ArchiveFormat)
	}
	length := binary.BigEndian.Uint32(fixed[len(archiveMagic)+2:])
	if version == 0 || length > maxHeader {
		return a.corrupt("version or header length is out of range")
	}
	text := make([]byte, length)
	if err := a.read(text); err != nil {
		return err
	}
	if err := a.checkSum(a.sum, "header"); err != nil {
		return err
	}
	a.header, err = decodeHeader(text)
	return err
}

// Next returns the next row and its section. The slices are valid until the next call. After the last row the
// trailer is checked and the error is [io.EOF]: only then is the archive known to be whole.
func (a *ArchiveReader) Next() (section string, key, value []byte, err error) {
	for a.err == nil && a.restRows == 0 {
		a.err = a.advance()
	}
	if a.err != nil {
		return "", nil, nil, a.err
	}
	key, value, a.err = a.cutRow()
	return a.section, key, value, a.err
}

func (a *ArchiveReader) cutRow() (key, value []byte, err error) {
	if len(a.rest) < 8 {
		return nil, nil, a.corrupt("row is cut short")
	}
	k, v := uint64(binary.BigEndian.Uint32(a.rest)), uint64(binary.BigEndian.Uint32(a.rest[4:]))
	if 8+k+v > uint64(len(a.rest)) {
		return nil, nil, a.corrupt("row is longer than its chunk")
	}
	key, value = a.rest[8:8+k:8+k], a.rest[8+k:8+k+v:8+k+v]
	a.rest = a.rest[8+k+v:]
	if a.restRows--; a.restRows == 0 && len(a.rest) > 0 {
		return nil, nil, a.corrupt("chunk holds more than its rows")
	}
	return key, value, nil
}

// advance reads one tag and what belongs to it.
func (a *ArchiveReader) advance() error {
	var tag [1]byte
	if err := a.read(tag[:]); err != nil {
		return err
	}
	switch {
	case tag[0] == tagSection && !a.open:
		return a.beginSection()
	case tag[0] == tagChunk && a.open:
		return a.readChunk()
	case tag[0] == tagEnd && a.open:
		return a.endSection()
	case tag[0] == tagTrailer && !a.open:
		return a.readTrailer()
	}
	return a.corrupt(fmt.Sprintf("unexpected tag %#x", tag[0]))
}

func (a *ArchiveReader) beginSection() error {
	var length [1]byte
	if err := a.read(length[:]); err != nil {
		return err
	}
	name := make([]byte, length[0])
	if err := a.read(name); err != nil {
		return err
	}
	head := append([]byte{tagSection, length[0]}, name...)
	if err := a.checkSum(crc32.Checksum(head, castagnoli), "section name"); err != nil {
		return err
	}
	if len(name) == 0 {
		return a.corrupt("section has no name")
	}
	a.section, a.open, a.rows = string(name), true, 0
	a.sectionSum = crc32.Checksum(name, castagnoli)
	a.sections++
	return nil
}

func (a *ArchiveReader) readChunk() error {
	head := make([]byte, 1+12)
	head[0] = tagChunk
	if err := a.read(head[1:]); err != nil {
		return err
	}
	var want [4]byte
	if err := a.read(want[:]); err != nil {
		return err
	}
	stored, raw := binary.BigEndian.Uint32(head[1:]), binary.BigEndian.Uint32(head[5:])
	if stored > maxRaw+maxRaw/8 || raw > maxRaw {
		return a.corrupt("chunk length is out of range")
	}
	if err := a.readStored(int(stored)); err != nil {
		return err
	}
	sum := crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, a.stored)
	if sum != binary.BigEndian.Uint32(want[:]) {
		return a.corrupt("chunk fails its checksum")
	}
	out, err := a.dec.DecodeAll(a.stored, a.raw[:0])
	if err != nil || len(out) != int(raw) {
		return a.corrupt("chunk does not decompress")
	}
	a.raw, a.rest, a.restRows = out, out, binary.BigEndian.Uint32(head[9:])
	if a.restRows == 0 {
		return a.corrupt("chunk has no rows")
	}
	a.rows += uint64(a.restRows)
	a.sectionSum = crc32.Update(a.sectionSum, castagnoli, out)
	return nil
}

// readStored grows the buffer as bytes arrive, so that a forged length costs no memory.
func (a *ArchiveReader) readStored(n int) error {
	a.stored = a.stored[:0]
	for len(a.stored) < n {
		at := len(a.stored)
		a.stored = append(a.stored, make([]byte, min(n-at, chunkTarget))...)
		if err := a.read(a.stored[at:]); err != nil {
			return err
		}
	}
	return nil
}

func (a *ArchiveReader) endSection() error {
	b := make([]byte, 1+8)
	b[0] = tagEnd
	if err := a.read(b[1:]); err != nil {
		return err
	}
	if err := a.checkSum(crc32.Update(a.sectionSum, castagnoli, b), "section"); err != nil {
		return err
	}
	if n := binary.BigEndian.Uint64(b[1:]); n != a.rows {
		return a.corrupt(fmt.Sprintf("section has %d rows, its end says %d", a.rows, n))
	}
	a.total += a.rows
	a.open = false
	return nil
}

func (a *ArchiveReader) readTrailer() error {
	var b [16]byte
	if err := a.read(b[:]); err != nil {
		return err
	}
	if err := a.checkSum(a.sum, "archive"); err != nil {
		return err
	}
	if binary.BigEndian.Uint64(b[:]) != a.sections || binary.BigEndian.Uint64(b[8:]) != a.total {
		return a.corrupt("trailer counts other sections or rows")
	}
	if _, err := a.r.ReadByte(); err == nil {
		return a.corrupt("bytes follow the trailer")
	} else if err != io.EOF {
		return fmt.Errorf("read archive: %w", err)
	}
	return io.EOF
}

// checkSum reads a checksum and compares it with sum, which was computed before it.
func (a *ArchiveReader) checkSum(sum uint32, what string) error {
	var b [4]byte
	if err := a.read(b[:]); err != nil {
		return err
	}
	if binary.BigEndian.Uint32(b[:]) != sum {
		return a.corrupt(what + " fails its checksum")
	}
	return nil
}

func (a *ArchiveReader) read(b []byte) error {
	_, err := a.readSome(b)
	return err
}

// readSome fills b, or says how far it came and why not further.
func (a *ArchiveReader) readSome(b []byte) (int, error) {
	n, err := io.ReadFull(a.r, b)
	a.offset += int64(n)
	a.sum = crc32.Update(a.sum, castagnoli, b[:n])
	switch {
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		return n, fmt.Errorf("%w at %s: fetch a whole copy", ErrTruncated, a.place())
	case err != nil:
		return n, fmt.Errorf("read archive at %s: %w", a.place(), err)
	}
	return n, nil
}

func (a *ArchiveReader) corrupt(reason string) error {
	return fmt.Errorf("%w at %s: %s: use another copy", ErrCorrupt, a.place(), reason)
}

func (a *ArchiveReader) place() string {
	switch {
	case a.open:
		return fmt.Sprintf("offset %d, section %s", a.offset, a.section)
	case a.section != "":
		return fmt.Sprintf("offset %d, after section %s", a.offset, a.section)
	}
	return fmt.Sprintf("offset %d, header", a.offset)
}
