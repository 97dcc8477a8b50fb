package reload

import (
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Options of [Open].
type Options struct {
	// Every is how long content counts as current without a look at the files; 0 means look every time.
	Every time.Duration
	// Log gets one line per change, used or not. Default slog.Default.
	Log *slog.Logger
	// Now is the clock of Every. Default time.Now.
	Now func() time.Time
}

// Files is the parsed content of one or more files that belong together, such as a certificate and its
// key. It is safe for concurrent use.
type Files[T any] struct {
	paths []string
	parse func(contents [][]byte) (T, error)
	opts  Options
	value atomic.Pointer[T]

	// mu guards what follows. Files are read under it: they are small and local.
	mu     sync.Mutex
	looked time.Time
	seen   []stamp
	// young: a file was written so lately that the next write may leave the same stamp.
	young bool
	// digest is that of the content last parsed, well or not.
	digest [sha256.Size]byte
}

// settles is how old a modification must be for the stamp to tell it from a later one: file systems keep
// times in steps of some milliseconds.
const settles = 100 * time.Millisecond

// stamp tells one version of a file from another. A file that is not there has the zero stamp.
type stamp struct {
	modified time.Time
	size     int64
}

// Open reads and parses the files. parse gets one content per path; its errors must not quote secrets.
func Open[T any](parse func([][]byte) (T, error), opts Options, paths ...string) (*Files[T], error) {
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	f := &Files[T]{paths: paths, parse: parse, opts: opts, looked: opts.Now(), seen: stamps(paths)}
	f.young = f.isYoung()
	if _, err := f.read(); err != nil {
		return nil, err
	}
	return f, nil
}

// Get returns the newest content that could be used. Where content may be a while old, nobody waits for
// whoever looks at the files.
func (f *Files[T]) Get() T {
	if f.opts.Every == 0 {
		f.mu.Lock()
	} else if !f.mu.TryLock() {
		return *f.value.Load()
	}
	defer f.mu.Unlock()
	f.look()
	return *f.value.Load()
}

// look reads the files again when they have changed. The stamps are taken before the content, so that a
// change in between is seen the next time.
func (f *Files[T]) look() {
	now := f.opts.Now()
	if now.Sub(f.looked) < f.opts.Every {
		return
	}
	f.looked = now
	seen := stamps(f.paths)
	if !f.young && slices.EqualFunc(seen, f.seen, stamp.equal) {
		return
	}
	f.seen = seen
	f.young = f.isYoung()
	changed, err := f.read()
	switch {
	case err != nil:
		f.opts.Log.Error("a changed file cannot be used, its previous content stays in force", "error", err)
	case changed:
		f.opts.Log.Info("file read again", "path", strings.Join(f.paths, ","))
	}
}

func (f *Files[T]) isYoung() bool {
	return slices.ContainsFunc(f.seen, func(s stamp) bool { return f.looked.Sub(s.modified).Abs() < settles })
}

// read takes the content in unless it is what was parsed before.
func (f *Files[T]) read() (changed bool, err error) {
	contents := make([][]byte, len(f.paths))
	hash := sha256.New()
	for i, path := range f.paths {
		if contents[i], err = os.ReadFile(path); err != nil {
			return false, err
		}
		fmt.Fprintln(hash, len(contents[i]))
		hash.Write(contents[i])
	}
	digest := [sha256.Size]byte(hash.Sum(nil))
	if digest == f.digest {
		return false, nil
	}
	f.digest = digest
	value, err := f.parse(contents)
	if err != nil {
		return false, fmt.Errorf("%s: %w", strings.Join(f.paths, ", "), err)
	}
	f.value.Store(&value)
	return true, nil
}

func (s stamp) equal(other stamp) bool {
	return s.size == other.size && s.modified.Equal(other.modified)
}

func stamps(paths []string) []stamp {
	out := make([]stamp, len(paths))
	for i, path := range paths {
		if info, err := os.Stat(path); err == nil {
			out[i] = stamp{info.ModTime(), info.Size()}
		}
	}
	return out
}
