package store

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/zstd"
)

// ArchiveWriter writes an archive: Section, then its rows, then the next section, and Close at the end.
// The first error sticks. Memory is bounded by one chunk. Not safe for concurrent use.
type ArchiveWriter struct {
	w    io.Writer
	enc  *zstd.Encoder
	sum  uint32 // of every byte written
	err  error
	done bool

	open       bool
	sections   uint64
	total      uint64
	rows       uint64 // of the section
	sectionSum uint32
	raw        []byte
	rawRows    uint32
	stored     []byte
}

// NewArchiveWriter writes the header. The header's format version is set to [ArchiveFormat].
func NewArchiveWriter(w io.Writer, header Header) (*ArchiveWriter, error) {
	header.FormatVersion = ArchiveFormat
	text, err := json.Marshal(header)
	if err != nil {
		return nil, fmt.Errorf("encode archive header: %w", err)
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("set up compression: %w", err)
	}
	a := &ArchiveWriter{w: w, enc: enc}
	b := append([]byte(archiveMagic), 0, ArchiveFormat)
	b = binary.BigEndian.AppendUint32(b, uint32(len(text)))
	b = append(b, text...)
	a.write(appendSum(b))
	return a, a.err
}

// appendSum appends the checksum of b.
func appendSum(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func (a *ArchiveWriter) write(b []byte) {
	if a.err != nil {
		return
	}
	a.sum = crc32.Update(a.sum, castagnoli, b)
	if _, err := a.w.Write(b); err != nil {
		a.err = fmt.Errorf("write archive: %w", err)
	}
}

// Section begins a section; name has 1 to 255 bytes.
func (a *ArchiveWriter) Section(name string) error {
	a.endSection()
	if a.err == nil && (len(name) == 0 || len(name) > 255) {
		a.err = fmt.Errorf("section name has %d bytes, allowed are 1 to 255", len(name))
	}
	if a.err != nil {
		return a.err
	}
	b := append([]byte{tagSection, byte(len(name))}, name...)
	a.write(appendSum(b))
	a.open, a.rows, a.sectionSum = true, 0, crc32.Checksum([]byte(name), castagnoli)
	a.sections++
	return a.err
}

// Row adds a row to the section. It keeps neither slice.
func (a *ArchiveWriter) Row(key, value []byte) error {
	if a.err == nil && !a.open {
		a.err = fmt.Errorf("row written before a section")
	}
	if a.err == nil && (len(key) > MaxKey || len(value) > MaxValue) {
		a.err = fmt.Errorf("%w: row of %d and %d bytes", ErrBadChange, len(key), len(value))
	}
	if a.err != nil {
		return a.err
	}
	a.raw = binary.BigEndian.AppendUint32(a.raw, uint32(len(key)))
	a.raw = binary.BigEndian.AppendUint32(a.raw, uint32(len(value)))
	a.raw = append(append(a.raw, key...), value...)
	a.rawRows++
	if len(a.raw) >= chunkTarget {
		a.endChunk()
	}
	return a.err
}

func (a *ArchiveWriter) endChunk() {
	if a.rawRows == 0 {
		return
	}
	a.stored = a.enc.EncodeAll(a.raw, a.stored[:0])
	b := binary.BigEndian.AppendUint32([]byte{tagChunk}, uint32(len(a.stored)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(a.raw)))
	b = binary.BigEndian.AppendUint32(b, a.rawRows)
	sum := crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, a.stored)
	a.write(binary.BigEndian.AppendUint32(b, sum))
	a.write(a.stored)
	a.sectionSum = crc32.Update(a.sectionSum, castagnoli, a.raw)
	a.rows += uint64(a.rawRows)
	a.raw, a.rawRows = a.raw[:0], 0
}

func (a *ArchiveWriter) endSection() {
	if !a.open {
		return
	}
	a.endChunk()
	b := binary.BigEndian.AppendUint64([]byte{tagEnd}, a.rows)
	sum := crc32.Update(a.sectionSum, castagnoli, b)
	a.write(binary.BigEndian.AppendUint32(b, sum))
	a.total += a.rows
	a.open = false
}

// Close ends the archive with its trailer; the underlying writer stays open. Without Close a reader refuses
// the archive as truncated. After an error nothing more is written.
func (a *ArchiveWriter) Close() error {
	if a.done {
		return a.err
	}
	a.done = true
	a.endSection()
	b := binary.BigEndian.AppendUint64([]byte{tagTrailer}, a.sections)
	b = binary.BigEndian.AppendUint64(b, a.total)
	sum := crc32.Update(a.sum, castagnoli, b)
	a.write(binary.BigEndian.AppendUint32(b, sum))
	return a.err
}
