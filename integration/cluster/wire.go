package cluster

import (
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"time"
)

// Link says what happens to packets from one end to another. The zero value carries them at once.
type Link struct {
	Cut bool
	// Delay is for each packet; Jitter adds up to as much again at random and keeps the order.
	Delay, Jitter time.Duration
	// Loss is the share of packets that are lost, 0 to 1.
	Loss float64
}

// Wire carries packets between TUN devices. It is safe for concurrent use.
type Wire struct {
	ends map[netip.Addr]*os.File
	done sync.WaitGroup

	// mu guards links and rng.
	mu    sync.Mutex
	links map[direction]Link
	rng   *rand.Rand
	lines map[direction]chan packet
	stop  chan struct{}
}

type direction struct{ from, to netip.Addr }

type packet struct {
	at   time.Time
	data []byte
}

// lineLength is how many delayed packets one direction holds; more are lost.
const lineLength = 4096

// newWire carries packets until close.
func newWire(seed uint64, ends ...*namespace) *Wire {
	w := &Wire{
		ends: map[netip.Addr]*os.File{}, links: map[direction]Link{}, lines: map[direction]chan packet{},
		rng: rand.New(rand.NewPCG(seed, 1)), stop: make(chan struct{}),
	}
	for _, ns := range ends {
		w.ends[netip.MustParseAddr(ns.addr)] = ns.file
		w.ends[netip.MustParseAddr(ns.alternate)] = ns.file
	}
	for from := range w.ends {
		for to := range w.ends {
			w.lines[direction{from, to}] = make(chan packet, lineLength)
		}
	}
	for d, line := range w.lines {
		w.done.Go(func() { w.deliver(w.ends[d.to], line) })
	}
	for _, ns := range ends {
		w.done.Go(func() { w.carry(ns.file) })
	}
	return w
}

// close stops carrying and closes the devices.
func (w *Wire) close() {
	close(w.stop)
	for _, file := range w.ends {
		_ = file.Close()
	}
	w.done.Wait()
}

// Set changes what happens to packets from one address to another.
func (w *Wire) Set(from, to string, l Link) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.links[direction{netip.MustParseAddr(from), netip.MustParseAddr(to)}] = l
}

// Heal undoes all Set.
func (w *Wire) Heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.links)
}

// carry reads the packets that one end sends.
func (w *Wire) carry(file *os.File) {
	buf := make([]byte, 64<<10)
	for {
		n, err := file.Read(buf)
		if err != nil {
			return
		}
		if n < 20 || buf[0]>>4 != 4 {
			continue // no IPv4
		}
		from, _ := netip.AddrFromSlice(buf[12:16])
		to, _ := netip.AddrFromSlice(buf[16:20])
		w.send(direction{from, to}, buf[:n])
	}
}

func (w *Wire) send(d direction, data []byte) {
	end, ok := w.ends[d.to]
	if !ok {
		return
	}
	delay, lost := w.fate(d)
	if lost {
		return
	}
	if delay == 0 {
		_, _ = end.Write(data) // a full or closed device loses it, as networks do
		return
	}
	select {
	case w.lines[d] <- packet{time.Now().Add(delay), append([]byte(nil), data...)}:
	default:
	}
}

// fate decides on one packet.
func (w *Wire) fate(d direction) (delay time.Duration, lost bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.links[d]
	if l.Cut || l.Loss > 0 && w.rng.Float64() < l.Loss {
		return 0, true
	}
	if l.Jitter > 0 {
		l.Delay += time.Duration(w.rng.Int64N(int64(l.Jitter)))
	}
	return l.Delay, false
}

// deliver writes delayed packets in order.
func (w *Wire) deliver(end *os.File, line <-chan packet) {
	for {
		select {
		case <-w.stop:
			return
		case p := <-line:
			select {
			case <-w.stop:
				return
			case <-time.After(time.Until(p.at)):
			}
			_, _ = end.Write(p.data) // a full or closed device loses it, as networks do
		}
	}
}
