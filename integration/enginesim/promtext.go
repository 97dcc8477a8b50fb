package enginesim

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// labels are the label pairs of one series. They print sorted by name.
type labels map[string]string

// with returns a copy with one more pair.
func (l labels) with(name, value string) labels {
	out := make(labels, len(l)+1)
	for k, v := range l {
		out[k] = v
	}
	out[name] = value
	return out
}

// promText writes the text format 0.0.4 the way the engine's Python client library does. Its floats
// look unlike Go's encoders', and readers meet exactly these.
type promText struct {
	b strings.Builder
}

// family starts a metric family.
func (p *promText) family(name, kind, help string) {
	p.b.WriteString("# HELP " + name + " " + help + "\n# TYPE " + name + " " + kind + "\n")
}

// sample writes one series of the family started last.
func (p *promText) sample(name string, l labels, value float64) {
	p.b.WriteString(name)
	p.labels(l)
	p.b.WriteByte(' ')
	p.b.WriteString(pythonFloat(value))
	p.b.WriteByte('\n')
}

func (p *promText) labels(l labels) {
	if len(l) == 0 {
		return
	}
	names := make([]string, 0, len(l))
	for name := range l {
		names = append(names, name)
	}
	slices.Sort(names)
	for i, name := range names {
		p.b.WriteByte("{,"[min(i, 1)])
		p.b.WriteString(name + `="` + labelEscaper.Replace(l[name]) + `"`)
	}
	p.b.WriteByte('}')
}

var labelEscaper = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// pythonFloat prints v as the Python client does: repr, so 0.0 and 2231.0, but from a million on
// with an exponent that begins with a literal 0, so 2.340338e+06 and even 1e+010.
func pythonFloat(v float64) string {
	switch {
	case math.IsNaN(v):
		return "NaN"
	case math.IsInf(v, 1):
		return "+Inf"
	case math.IsInf(v, -1):
		return "-Inf"
	}
	if a := math.Abs(v); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(v, 'e', -1, 64)
	}
	s := strconv.FormatFloat(v, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	dot := strings.IndexByte(s, '.')
	if v <= 0 || dot <= 6 {
		return s
	}
	mantissa := strings.TrimRight(s[:1]+"."+s[1:dot]+s[dot+1:], "0.")
	return mantissa + "e+0" + strconv.Itoa(dot-1)
}
