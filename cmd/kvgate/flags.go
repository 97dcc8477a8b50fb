package main

import (
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// Annotations that this package keeps on flags.
const (
	noteAllowed = "kvgate/allowed" // what the flag accepts, in words
	noteEnv     = "kvgate/env"     // the flag may also come from the environment and the file
)

// allow records in words what a flag accepts, for the message about a value it does not.
func allow(fs *pflag.FlagSet, name, words string) {
	_ = fs.SetAnnotation(name, noteAllowed, []string{words}) // fails only for a flag that is not there
}

// allowedValues says in words what a flag accepts.
func allowedValues(f *pflag.Flag) string {
	if words := f.Annotations[noteAllowed]; len(words) == 1 {
		return words[0]
	}
	switch f.Value.Type() {
	case "bool":
		return "true or false"
	case "duration":
		return "a duration such as 500ms, 45s or 10m"
	case "int", "int32", "int64":
		return "a whole number"
	case "uint64":
		return "a whole number, 0 or above"
	default:
		return "another value"
	}
}

// configurable lets every flag of a set also come from KVGATE_… variables and, for commands that
// have --config, from the file.
func configurable(fs *pflag.FlagSet) {
	fs.VisitAll(func(f *pflag.Flag) { _ = fs.SetAnnotation(f.Name, noteEnv, []string{"true"}) })
}

func isConfigurable(f *pflag.Flag) bool { return len(f.Annotations[noteEnv]) > 0 }

// choice is a flag value that accepts a few words.
type choice struct {
	value *string
	words []string
}

// choiceVar defines a flag that accepts one of words.
func choiceVar(fs *pflag.FlagSet, p *string, name, value, usage string, words ...string) {
	*p = value
	fs.Var(&choice{value: p, words: words}, name, usage+": "+strings.Join(words, ", "))
	allow(fs, name, oneOf(words))
}

func (c *choice) String() string { return *c.value }
func (c *choice) Type() string   { return "word" }

// Set implements [pflag.Value].
func (c *choice) Set(s string) error {
	word := strings.ToLower(strings.TrimSpace(s))
	if !slices.Contains(c.words, word) {
		return badValue("word", s, oneOf(c.words))
	}
	*c.value = word
	return nil
}

// count is a flag value for a number of things; "64_000" and "64000" are the same.
type count int64

func (c *count) String() string { return strconv.FormatInt(int64(*c), 10) }
func (c *count) Type() string   { return "count" }

// Set implements [pflag.Value].
func (c *count) Set(s string) error {
	n, err := parseCount(s)
	*c = count(n)
	return err
}

// countVar defines a flag for a whole number that is not below 0.
func countVar(fs *pflag.FlagSet, p *int64, name string, value int64, usage string) {
	*p = value
	fs.Var((*count)(p), name, usage)
	allow(fs, name, "a whole number, 0 or above")
}

// parseCount reads a whole number that is not below 0; underscores may group its digits.
func parseCount(s string) (int64, error) {
	n, err := strconv.ParseUint(strings.ReplaceAll(s, "_", ""), 10, 63)
	return int64(n), err
}

// oneOf words a list: "a, b or c".
func oneOf(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
