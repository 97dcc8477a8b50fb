//go:build faults

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"kvgate/fsm"
)

// faultsFile is the variable that names the control file, faultsVersion the one that makes the node
// pretend to be of an older command version. A fault build without them behaves as any other.
const (
	faultsFile    = "FAULTS_FILE"
	faultsVersion = "FAULTS_COMMAND_VERSION"
)

// faultControl is the content of the control file, which is read again at each use. A missing file means
// no faults.
type faultControl struct {
	// ClockOffset moves the wall clock; the monotonic clock goes on as it was.
	ClockOffset time.Duration `json:"clockOffset"`
	// StallDisk holds every write until it is false again.
	StallDisk bool `json:"stallDisk"`
	// WriteDelay slows every write.
	WriteDelay time.Duration `json:"writeDelay"`
	// WriteError fails the writes of the log, and those of state and journal as a full disk does; never those of term and
	// vote, which end the node.
	WriteError string `json:"writeError"`
}

const stallPoll = 5 * time.Millisecond

// injectFaults hooks faults into a fault build.
func injectFaults(o *fsm.Options) {
	if v, err := strconv.ParseUint(os.Getenv(faultsVersion), 10, 32); err == nil {
		o.CommandVersion = uint32(v)
	}
	path := os.Getenv(faultsFile)
	if path == "" {
		return
	}
	o.Now = func() time.Time { return stepClock(time.Now(), readFaults(path).ClockOffset) }
	o.BeforeWrite = func(op string) error { return beforeWrite(path, op) }
}

func readFaults(path string) (c faultControl) {
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		panic("control file of the fault build: " + err.Error())
	}
	return c
}

func beforeWrite(path, op string) error {
	c := readFaults(path)
	time.Sleep(c.WriteDelay)
	for ; c.StallDisk; c = readFaults(path) {
		time.Sleep(stallPoll)
	}
	switch {
	case c.WriteError == "" || op == "set":
		return nil
	case op == fsm.OpPage:
		return fmt.Errorf("%s: %w", c.WriteError, syscall.ENOSPC)
	}
	return errors.New(c.WriteError)
}

// stepClock returns t as the runtime would give it after the operator stepped the wall clock by d: the
// wall time moves, the monotonic time does not. No exported function can say that, so the seconds are
// changed in place: 33 bits above 30 bits of nanoseconds.
func stepClock(t time.Time, d time.Duration) time.Time {
	*(*uint64)(unsafe.Pointer(&t)) += uint64(int64(d/time.Second)) << 30
	return t
}
