package tokens

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"kvgate/rpc/reload"
)

// Role says what the holder of a token may do.
type Role string

// The roles.
const (
	// Client may use the admission of its pools.
	Client Role = "client"
	// Observer may read.
	Observer Role = "observer"
	// Admin may do everything.
	Admin Role = "admin"
)

// ErrBadLine: a line of a token file is not as it must be; the error says which line, never the token.
var ErrBadLine = errors.New("bad token file")

// Grant is what a token allows.
type Grant struct {
	Role Role
	// Pools are the pools of a client; empty means all.
	Pools []string
}

// InPool reports whether the grant reaches a pool.
func (g Grant) InPool(pool string) bool { return len(g.Pools) == 0 || slices.Contains(g.Pools, pool) }

// List is the content of one file.
type List struct{ rows []row }

type row struct {
	hash [sha256.Size]byte
	line int
	Grant
}

// Parse reads a token file. It is an error when there is no token in it: nobody could call.
func Parse(content []byte) (*List, error) {
	list := &List{}
	line := 0
	for text := range bytes.Lines(content) {
		line++
		words := strings.Fields(string(text))
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if err := list.add(line, words); err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrBadLine, line, err)
		}
	}
	if len(list.rows) == 0 {
		return nil, fmt.Errorf("%w: no token in it: write one a line as `token role [pool,…]`", ErrBadLine)
	}
	return list, nil
}

func (l *List) add(line int, words []string) error {
	if len(words) < 2 || len(words) > 3 {
		return fmt.Errorf("%d words: use `token role [pool,…]`, pools separated by commas without spaces", len(words))
	}
	r := row{hash: sha256.Sum256([]byte(words[0])), line: line, Grant: Grant{Role: Role(words[1])}}
	switch r.Role {
	case Client, Observer, Admin:
	default:
		// The word may be a token that was put in the wrong place.
		return errors.New("the second word is no role: use client, observer or admin")
	}
	if len(words) == 3 {
		if r.Role != Client {
			return fmt.Errorf("role %s takes no pools: leave them out", r.Role)
		}
		r.Pools = strings.Split(words[2], ",")
	}
	if slices.Contains(r.Pools, "") {
		return errors.New("a pool without a name: use names separated by commas")
	}
	for _, other := range l.rows {
		if other.hash == r.hash {
			return fmt.Errorf("the token of line %d again: use every token once", other.line)
		}
	}
	l.rows = append(l.rows, r)
	return nil
}

// Find returns what a token allows, and false for one that is not in the list. It looks at every row and
// compares hashes, so that its duration tells nothing about how much of a token was right.
func (l *List) Find(token string) (Grant, bool) {
	hash := sha256.Sum256([]byte(token))
	at := -1
	for i := range l.rows {
		at = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(hash[:], l.rows[i].hash[:]), i, at)
	}
	if at < 0 {
		return Grant{}, false
	}
	return l.rows[at].Grant, true
}

// File is a token file that is read again when it changes.
type File struct{ files *reload.Files[*List] }

// lookEvery bounds how long a revoked token still works, and what the check costs.
const lookEvery = time.Second

// Open reads a token file.
func Open(path string, log *slog.Logger) (*File, error) {
	return open(path, reload.Options{Log: log, Every: lookEvery})
}

func open(path string, opts reload.Options) (*File, error) {
	files, err := reload.Open(func(contents [][]byte) (*List, error) { return Parse(contents[0]) }, opts, path)
	if err != nil {
		return nil, err
	}
	return &File{files}, nil
}

// Find returns what a token allows now.
func (f *File) Find(token string) (Grant, bool) { return f.files.Get().Find(token) }
