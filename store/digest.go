package store

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Digest is a checksum of a set of rows that can be kept up to date row by row, whatever the order of writes:
// the sum of two CRCs of each row (both computed by the processor). It finds damage, not malice. Two nodes at one index have the same digest.
type Digest struct {
	Rows uint64
	Sum  uint64
}

// digester adds and takes away rows; scratch spares one allocation for each row.
type digester struct {
	Digest
	scratch []byte
}

func (d *digester) hash(bucket string, key, value []byte) uint64 {
	b := append(d.scratch[:0], bucket...)
	b = append(b, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(len(key)))
	b = append(b, key...)
	b = append(b, value...)
	d.scratch = b
	return uint64(crc32.Checksum(b, castagnoli))<<32 | uint64(crc32.ChecksumIEEE(b))
}

func (d *digester) add(bucket string, key, value []byte) {
	d.Rows++
	d.Sum += d.hash(bucket, key, value)
}

func (d *digester) remove(bucket string, key, value []byte) {
	d.Rows--
	d.Sum -= d.hash(bucket, key, value)
}

// infoBucket holds what a file says of itself; it is no part of the replicated state.
const (
	infoBucket = "_info"
	infoKey    = "info"
	fileFormat = 1
	infoSize   = 8 * 6
)

// info is the record a bbolt file keeps about its own content. State uses Index and Term for what is applied;
// a journal segment uses First and Index for the first and last index it holds.
type info struct {
	Format uint64
	First  uint64
	Index  uint64
	Term   uint64
	Digest
}

func (i info) encode() []byte {
	b := make([]byte, 0, infoSize+4)
	for _, v := range [...]uint64{i.Format, i.First, i.Index, i.Term, i.Rows, i.Sum} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeInfo(b []byte) (info, error) {
	if len(b) != infoSize+4 {
		return info{}, fmt.Errorf("%w: info record has %d bytes, not %d", ErrDamaged, len(b), infoSize+4)
	}
	if crc32.Checksum(b[:infoSize], castagnoli) != binary.BigEndian.Uint32(b[infoSize:]) {
		return info{}, fmt.Errorf("%w: info record fails its checksum", ErrDamaged)
	}
	var v [6]uint64
	for i := range v {
		v[i] = binary.BigEndian.Uint64(b[i*8:])
	}
	if v[0] != fileFormat {
		return info{}, fmt.Errorf("%w: file format %d, this release knows %d", ErrNewerFormat, v[0], fileFormat)
	}
	return info{Format: v[0], First: v[1], Index: v[2], Term: v[3], Digest: Digest{v[4], v[5]}}, nil
}
