package store

import "errors"

var (
	// ErrLocked means that another process has the data directory open.
	ErrLocked = errors.New("data directory is in use")
	// ErrForeignDir means that the data directory belongs to another node or cluster.
	ErrForeignDir = errors.New("data directory belongs to another node")
	// ErrNewerFormat means that a newer release wrote the directory or archive.
	ErrNewerFormat = errors.New("format is newer than this release")
	// ErrDamaged means that a file on disk contradicts its own structure or checksums.
	ErrDamaged = errors.New("file is damaged")
	// ErrClosed means that the store was closed before the call.
	ErrClosed = errors.New("store is closed")

	// ErrStaleIndex means that Apply was called with an index that is not above the applied one.
	ErrStaleIndex = errors.New("index is not above the applied index")
	// ErrBadChange means that a change names no bucket, or a key or value outside the limits.
	ErrBadChange = errors.New("change cannot be stored")

	// ErrTruncated means that an archive ends before its trailer.
	ErrTruncated = errors.New("archive is truncated")
	// ErrCorrupt means that an archive fails a checksum or breaks the format.
	ErrCorrupt = errors.New("archive is corrupt")
	// ErrForeign means that a file is no kvgate archive.
	ErrForeign = errors.New("not a kvgate archive")

	// ErrNotEmpty means that a data directory is to be made where something is already.
	ErrNotEmpty = errors.New("directory is not empty")
	// ErrUnfinished means that a restore into the data directory was cut short.
	ErrUnfinished = errors.New("a restore into the data directory was cut short")
	// ErrTrimmed means that the journal was trimmed while it was being saved.
	ErrTrimmed = errors.New("journal was trimmed meanwhile")

	// ErrNoSpace means that the file system has less free space than the floor.
	ErrNoSpace = errors.New("disk space is below the floor")
	// ErrReadOnly means that the data directory cannot be written to.
	ErrReadOnly = errors.New("data directory is not writable")
)
