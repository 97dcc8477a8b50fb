package main

import (
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"kvgate/rpc/words"
)

const day = 24 * time.Hour

// number writes a whole number with separators between the thousands.
func number[N ~int32 | ~int64 | ~uint64](n N) string { return words.Number(n) }

// percent writes a share of 1.
func percent(share float64) string { return words.Percent(share) }

// decimal writes a number as short as it can be said exactly, never with an exponent.
func decimal(f float64) string { return words.Decimal(f) }

// quantity writes a number for people, with separators when it is whole.
func quantity(f float64) string {
	if f == math.Trunc(f) && math.Abs(f) < 1<<53 {
		return number(int64(f))
	}
	return decimal(f)
}

// span writes a duration with about three digits: "12ms", "4.2s", "3m05s", "1d04h". An absent
// duration is "-".
func span(d *durationpb.Duration) string {
	if d == nil {
		return "-"
	}
	return humanDuration(d.AsDuration())
}

func humanDuration(d time.Duration) string { return words.Duration(d) }

// parseDuration reads a duration that is not below 0; beyond the units of [time.ParseDuration] it
// knows whole days, as in "7d" or "1d12h".
func parseDuration(s string) (time.Duration, error) {
	var days time.Duration
	rest := s
	if head, tail, found := strings.Cut(s, "d"); found {
		n, err := strconv.ParseUint(head, 10, 16)
		if err != nil {
			return 0, err
		}
		days, rest = time.Duration(n)*day, tail
		if rest == "" {
			return days, nil
		}
	}
	d, err := time.ParseDuration(rest)
	if err == nil && (d < 0 || days+d < 0) {
		err = strconv.ErrRange
	}
	return days + d, err
}

// word writes an enum value as people say it: REASON_CAPACITY_AVAILABLE is "capacity_available".
func word(e protoreflect.Enum) string { return words.Enum(e.Descriptor(), e.Number()) }

// clean makes characters visible that a terminal would act on.
func clean(s string) string {
	if strings.IndexFunc(s, notPrintable) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if notPrintable(r) {
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

func notPrintable(r rune) bool { return !unicode.IsPrint(r) }

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
