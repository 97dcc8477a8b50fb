package enginesim

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// listener serves a handler on one address that it can give up and take back.
type listener struct {
	mu      sync.Mutex
	addr    string
	handler http.Handler
	srv     *http.Server // nil while nothing listens
	timer   *time.Timer  // of a refusal that ends by itself
	closed  bool
	wg      sync.WaitGroup
}

func (l *listener) start(addr string, h http.Handler) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.addr != "" {
		return "", fmt.Errorf("%w: started or closed already", ErrNotStarted)
	}
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	l.handler = h
	if err := l.listen(addr); err != nil {
		return "", err
	}
	return "http://" + l.addr, nil
}

// listen needs the lock.
func (l *listener) listen(addr string) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", addr, err)
	}
	l.addr = ln.Addr().String()
	srv := &http.Server{Handler: l.handler, ReadHeaderTimeout: 30 * time.Second}
	l.srv = srv
	l.wg.Go(func() { _ = srv.Serve(ln) })
	return nil
}

// refuse stops listening and cuts open connections, for a while or (0) until resume.
func (l *listener) refuse(while time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.addr == "" || l.closed {
		return fmt.Errorf("%w: refuse needs an engine that was started", ErrNotStarted)
	}
	if while > 0 {
		l.timer = time.AfterFunc(while, func() { _ = l.resume() })
	}
	if l.srv == nil {
		return nil
	}
	err := l.srv.Close()
	l.srv = nil
	return err
}

// resume takes the address back. It does nothing when it was not given up.
func (l *listener) resume() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if l.closed || l.addr == "" || l.srv != nil {
		return nil
	}
	return l.listen(l.addr)
}

func (l *listener) url() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.addr == "" {
		return ""
	}
	return "http://" + l.addr
}

func (l *listener) close() error {
	l.mu.Lock()
	if l.timer != nil {
		l.timer.Stop()
	}
	srv := l.srv
	l.srv, l.closed = nil, true
	l.mu.Unlock()
	var err error
	if srv != nil {
		err = srv.Close()
	}
	l.wg.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
