package procs

import "sync"

// maxShown is how many bytes of a node's log a failed test prints.
const maxShown = 16 << 10

// logs collects what a process writes.
type logs struct {
	mu   sync.Mutex
	data []byte
}

// Write implements io.Writer.
func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.data = append(l.data, b...)
	return len(b), nil
}

// tail returns the last n bytes, all of them when n is 0.
func (l *logs) tail(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > 0 && len(l.data) > n {
		return "… " + string(l.data[len(l.data)-n:])
	}
	return string(l.data)
}
