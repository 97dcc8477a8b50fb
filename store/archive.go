package store

import (
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// ArchiveFormat is the version of archives that this release writes. It reads this and all older ones.
const ArchiveFormat = 1

// Layout of an archive, integers big-endian, checksums CRC-32C:
//
//	magic "KVGATE\r\n", version u16, header length u32, header JSON, checksum u32 of all before
//	for each section:  'S' name length u8, name, checksum u32
//	    for each chunk:  'C' stored length u32, raw length u32, rows u32, checksum u32 of fields and stored bytes, stored bytes
//	                     raw (zstd): for each row, key length u32, value length u32, key, value
//	    'E' rows u64, checksum u32 of the raw bytes of the section and this field
//	'T' sections u64, rows u64, checksum u32 of every byte before
const archiveMagic = "KVGATE\r\n"

const (
	tagSection = 'S'
	tagChunk   = 'C'
	tagEnd     = 'E'
	tagTrailer = 'T'

	chunkTarget = 256 << 10                           // a chunk is closed at this many raw bytes
	maxRaw      = chunkTarget + 8 + MaxKey + MaxValue // longest chunk: one short of the target, and the longest row
	maxHeader   = 1 << 20
)

// JournalSection is the section that holds events when an archive bundles them; keys are those of [JournalKey].
const JournalSection = "journal"

// Header says what an archive holds.
type Header struct {
	FormatVersion int               `json:"formatVersion"` // set by the writer
	ClusterID     string            `json:"clusterId"`
	Index         uint64            `json:"index"`
	Term          uint64            `json:"term"`
	LedgerTime    int64             `json:"ledgerTime"` // as the machine counts it, opaque here
	WallTime      time.Time         `json:"wallTime"`
	NodeVersions  map[string]string `json:"nodeVersions,omitempty"` // release by node id, of the nodes that were reached
	Members       []Member          `json:"members,omitempty"`      // of the cluster; files of releases before have none
	JournalFirst  uint64            `json:"journalFirst,omitempty"` // index from which the journal is complete
	Restored      *Restored         `json:"restored,omitempty"`     // only in what an operator's restore hands to raft
}

// Member is one node of the cluster that was saved.
type Member struct {
	ID         string `json:"id"`
	Address    string `json:"address"` // of raft
	APIAddress string `json:"apiAddress,omitempty"`
	Voter      bool   `json:"voter"`
}

// Restored says where a state that an operator restored comes from.
type Restored struct {
	ClusterID string    `json:"clusterId"`
	Index     uint64    `json:"index"`
	SavedAt   time.Time `json:"savedAt"`
	At        time.Time `json:"at"`
	Dropped   int64     `json:"dropped"` // events whose effects were lost
}

// ReadHeader reads the header of an archive file; what follows it is not looked at.
func ReadHeader(path string) (Header, error) {
	f, err := os.Open(path)
	if err != nil {
		return Header{}, fmt.Errorf("open archive: %w", err)
	}
	defer f.Close()
	r, err := NewArchiveReader(f)
	if err != nil {
		return Header{}, fmt.Errorf("%s: %w", path, err)
	}
	return r.Header(), nil
}

func decodeHeader(b []byte) (Header, error) {
	var h Header
	if err := json.Unmarshal(b, &h); err != nil {
		return h, fmt.Errorf("%w: header: %w", ErrCorrupt, err)
	}
	return h, nil
}
