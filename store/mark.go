package store

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// Outcome says what opening a file without flushed writes found.
type Outcome int

const (
	Fresh    Outcome = iota // nothing was there; an empty file was created
	Trusted                 // the file is the image of the applied index it names
	Rejected                // the file was set aside and an empty one created
)

func (o Outcome) String() string { return [...]string{"fresh", "trusted", "rejected"}[o] }

// Verdict is the outcome of opening, with the reason and the file set aside when it is Rejected.
type Verdict struct {
	Outcome Outcome
	Reason  string
	Aside   string
}

// Trusted reports whether what was on disk can be used.
func (v Verdict) Trusted() bool { return v.Outcome == Trusted }

// runMark lies beside files that are written without flushing and says whether the last run closed them.
// It is a file of its own because bbolt falls back to its older meta page when the newer one is torn: a mark
// inside the database could come back clean while its pages are already half overwritten.
type runMark struct {
	BootID string `json:"bootId"` // of the run that wrote last
	Clean  bool   `json:"clean"`  // closed and flushed
	// Unsealed are the first indexes of the journal's segments that only the log can bring back.
	Unsealed []uint64 `json:"unsealed,omitempty"`
}

func loadMark(path string) (runMark, error) {
	var m runMark
	data, err := os.ReadFile(path)
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return m, fmt.Errorf("%w: %s: %w", ErrDamaged, path, err)
	}
	return m, nil
}

// distrust returns why unflushed files must not be used, or "" when they may.
func distrust(markPath, bootID string) string {
	m, err := loadMark(markPath)
	switch {
	case err != nil:
		return fmt.Sprintf("no usable run mark: %v", err)
	case m.Clean:
		return ""
	case bootID == "" || m.BootID == "":
		return "not closed cleanly and the boot id is unknown"
	case m.BootID != bootID:
		return "machine was restarted without a clean stop"
	}
	return ""
}

const bootIDPath = "/proc/sys/kernel/random/boot_id"

// BootID names the current boot of the machine, or is "" where the system does not tell.
func BootID() string {
	data, err := os.ReadFile(bootIDPath)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
