package ledger_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"kvgate/ledger"
)

// args reads the arguments of one script command and refuses what no command asked for.
type args struct {
	t      *testing.T
	d      *datadriven.TestData
	ticket string
	used   map[string]bool
}

func (a *args) must(err error) {
	a.t.Helper()
	if err != nil {
		a.d.Fatalf(a.t, "%v", err)
	}
}

func (a *args) use(key string) {
	if a.used == nil {
		a.used = map[string]bool{}
	}
	a.used[key] = true
}

func (a *args) allUsed() {
	a.t.Helper()
	for _, arg := range a.d.CmdArgs {
		if !a.used[arg.Key] {
			a.d.Fatalf(a.t, "%s takes no argument %s", a.d.Cmd, arg.Key)
		}
	}
}

// name is the first argument.
func (a *args) name() string {
	a.t.Helper()
	if len(a.d.CmdArgs) == 0 {
		a.d.Fatalf(a.t, "%s needs an argument", a.d.Cmd)
	}
	a.ticket = a.d.CmdArgs[0].Key
	a.use(a.ticket)
	return a.ticket
}

func (a *args) text(key, fallback string) string {
	a.use(key)
	for _, arg := range a.d.CmdArgs {
		if arg.Key == key && len(arg.Vals) > 0 {
			return strings.Join(arg.Vals, " ")
		}
	}
	return fallback
}

func (a *args) flag(key string) bool {
	a.use(key)
	return a.d.HasArg(key)
}

func (a *args) int(key string, fallback int64) int64 {
	a.t.Helper()
	n, err := strconv.ParseInt(a.text(key, strconv.FormatInt(fallback, 10)), 10, 64)
	a.must(err)
	return n
}

func (a *args) duration(key string, fallback time.Duration) time.Duration {
	a.t.Helper()
	d, err := time.ParseDuration(a.text(key, fallback.String()))
	a.must(err)
	return d
}

func (a *args) ref() ledger.LeaseRef {
	return ledger.LeaseRef{
		Ticket: a.name(), Epoch: uint64(a.int("epoch", 0)), HasEpoch: a.flag("epoch"), Grant: ledger.Seq(a.int("grant", 0)),
	}
}

var roles = map[string]ledger.Role{
	"regular": ledger.RoleRegular, "prefill": ledger.RolePrefill, "decode": ledger.RoleDecode, "encode": ledger.RoleEncode,
}

// engine reads "name [capacity=n] [pressure=x] [role=r] [unhealthy]".
func (a *args) engine(fields []string) ledger.Engine {
	a.t.Helper()
	e := ledger.Engine{URL: fields[0], Healthy: true}
	for _, f := range fields[1:] {
		key, value, _ := strings.Cut(f, "=")
		var err error
		switch key {
		case "capacity":
			var n int64
			n, err = strconv.ParseInt(value, 10, 64)
			e.Capacity = ledger.Tokens(n)
		case "pressure":
			e.Pressure, err = strconv.ParseFloat(value, 64)
		case "role":
			e.Role = roles[value]
		case "unhealthy":
			e.Healthy, e.Error = false, "timeout"
		default:
			a.d.Fatalf(a.t, "engine has no field %s", key)
		}
		a.must(err)
	}
	return e
}

// patch reads the settings that scripts use.
func (a *args) patch() (p ledger.Patch) {
	a.t.Helper()
	words := map[string]uint8{
		"train": uint8(ledger.ScopeTrain), "all": uint8(ledger.ScopeAll), "bypass": uint8(ledger.OversizeBypass),
		"wait": uint8(ledger.OversizeWait), "auto": uint8(ledger.RolesAuto), "prefill": uint8(ledger.RolesPrefill),
	}
	readers := map[string]func(string) error{
		"admission":         func(v string) (err error) { p.Set.Admission, err = strconv.ParseBool(v); return err },
		"headroom":          func(v string) (err error) { p.Set.Headroom, err = strconv.ParseFloat(v, 64); return err },
		"pressureThreshold": func(v string) (err error) { p.Set.PressureThreshold, err = strconv.ParseFloat(v, 64); return err },
		"expectedDecodeCap": intoInt(&p.Set.ExpectedDecodeCap), "maxWaiters": intoInt(&p.Set.MaxWaiters),
		"maxWait": into(&p.Set.MaxWait), "leaseTtl": into(&p.Set.LeaseTTL), "maxTtl": into(&p.Set.MaxTTL),
		"detachGrace": into(&p.Set.DetachGrace), "staleness": into(&p.Set.Staleness), "pollInterval": into(&p.Set.PollInterval),
		"scope":         func(v string) error { p.Set.Scope = ledger.Scope(words[v]); return nil },
		"oversize":      func(v string) error { p.Set.Oversize = ledger.Oversize(words[v]); return nil },
		"capacityRoles": func(v string) error { p.Set.CapacityRoles = ledger.CapacityRoles(words[v]); return nil },
	}
	for _, arg := range a.d.CmdArgs {
		if read, ok := readers[arg.Key]; ok {
			a.use(arg.Key)
			a.must(read(arg.Vals[0]))
			p.Fields = append(p.Fields, arg.Key)
		}
	}
	if clear := a.text("clear", ""); clear != "" {
		p.Clear = []string{clear}
	}
	return p
}

func into(dst *time.Duration) func(string) error {
	return func(v string) (err error) {
		*dst, err = time.ParseDuration(v)
		return err
	}
}

func intoInt[T ~int64](dst *T) func(string) error {
	return func(v string) error {
		n, err := strconv.ParseInt(v, 10, 64)
		*dst = T(n)
		return err
	}
}
