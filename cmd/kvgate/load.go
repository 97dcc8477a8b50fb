package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const (
	envPrefix = "KVGATE_"
	// keyDelim never occurs in a key: keys are flat, and a dot in one must not nest it.
	keyDelim = "\x00"
)

// serviceLink matches the variables that Kubernetes sets in every pod for a Service, e.g.
// KVGATE_SERVICE_HOST and KVGATE_PORT_7070_TCP_ADDR for one that is named "kvgate". Nobody wrote
// them as configuration.
var serviceLink = regexp.MustCompile(`^KVGATE_(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// loadConfiguration fills the configurable flags of cmd: a flag on the command line wins over its
// KVGATE_… variable, which wins over the file named by --config, which wins over the default.
// Unknown variables and keys are errors; an empty variable counts as not set.
func loadConfiguration(cmd *cobra.Command, _ []string) error {
	if cmd.Name() == "help" || strings.HasPrefix(cmd.Name(), cobra.ShellCompRequestCmd) ||
		cmd.HasParent() && cmd.Parent().Name() == "completion" {
		return nil
	}
	variables, err := environment(cmd.Root())
	if err != nil {
		return err
	}
	merged := koanf.New(keyDelim)
	keys, err := readFile(cmd.Flags(), variables)
	if err != nil {
		return err
	}
	for _, layer := range []koanf.Provider{values(keys), values(variables), posflag.Provider(cmd.Flags(), keyDelim, merged)} {
		if err := merged.Load(layer, nil); err != nil {
			return usagef("configuration: %s", err)
		}
	}
	return assign(cmd.Flags(), merged, variables)
}

// values is a koanf provider for a flat map.
type values map[string]any

// Read implements [koanf.Provider].
func (v values) Read() (map[string]any, error) { return v, nil }

// ReadBytes implements [koanf.Provider].
func (v values) ReadBytes() ([]byte, error) { return nil, fmt.Errorf("values are not bytes") }

// environment returns the KVGATE_… variables by flag name.
func environment(root *cobra.Command) (map[string]any, error) {
	known := configurableFlags(root)
	var unknown []string
	merged := koanf.New(keyDelim)
	err := merged.Load(env.ProviderWithValue(envPrefix, keyDelim, func(name, value string) (string, any) {
		key := flagName(strings.TrimPrefix(name, envPrefix))
		switch {
		case value == "":
			return "", nil
		case slices.Contains(known, key) && variable(key) == name:
			return key, value
		case serviceLink.MatchString(name):
			return "", nil
		default:
			unknown = append(unknown, name)
			return "", nil
		}
	}), nil)
	if err != nil {
		return nil, usagef("environment: %s", err)
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return nil, usagef("%s: unknown environment variable; known are %s", unknown[0], strings.Join(each(known, variable), ", "))
	}
	return merged.All(), nil
}

// configurableFlags returns the names of all flags in the command tree that the environment may set.
func configurableFlags(cmd *cobra.Command) []string {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if isConfigurable(f) {
			names = append(names, f.Name)
		}
	})
	for _, child := range cmd.Commands() {
		names = append(names, configurableFlags(child)...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// readFile returns the keys of the file that --config or KVGATE_CONFIG names; a command without
// --config has none.
func readFile(fs *pflag.FlagSet, variables map[string]any) (map[string]any, error) {
	flag := fs.Lookup("config")
	if flag == nil {
		return nil, nil
	}
	path := flag.Value.String()
	if named, ok := variables["config"].(string); ok && !flag.Changed {
		path = named
	}
	if path == "" {
		return nil, nil
	}
	parsed := koanf.New(keyDelim)
	if err := parsed.Load(file.Provider(path), yaml.Parser()); err != nil {
		if os.IsNotExist(err) {
			return nil, badValue("config", path, "a file that exists")
		}
		return nil, usagef("config: %s: %s", path, err)
	}
	return fileKeys(fs, path, parsed.Raw())
}

func fileKeys(fs *pflag.FlagSet, path string, raw map[string]any) (map[string]any, error) {
	keys := make(map[string]any, len(raw))
	for _, written := range sortedKeys(raw) {
		key := flagName(written)
		flag := fs.Lookup(key)
		if flag == nil || key == "config" || !isConfigurable(flag) {
			return nil, usagef("%s: unknown key in %s; known are %s", written, path, strings.Join(fileKeyNames(fs), ", "))
		}
		if _, twice := keys[key]; twice {
			return nil, usagef("%s: written twice in %s", key, path)
		}
		if raw[written] == nil {
			continue // "key:" without a value leaves the default
		}
		value, ok := plain(raw[written])
		if !ok {
			return nil, badValue(key, fmt.Sprint(raw[written]), allowedValues(flag)+" (in "+path+")")
		}
		keys[key] = value
	}
	return keys, nil
}

func fileKeyNames(fs *pflag.FlagSet) []string {
	var names []string
	fs.VisitAll(func(f *pflag.Flag) {
		if isConfigurable(f) && f.Name != "config" {
			names = append(names, f.Name)
		}
	})
	return names
}

// plain returns a scalar or a list of scalars as the text a flag would have had.
func plain(v any) (string, bool) {
	switch v := v.(type) {
	case string, bool, int, int64, uint64, float64:
		return fmt.Sprint(v), true
	case []any:
		words := make([]string, len(v))
		for i, item := range v {
			word, ok := plain(item)
			if _, nested := item.([]any); !ok || nested {
				return "", false
			}
			words[i] = word
		}
		return strings.Join(words, ","), true
	default:
		return "", false
	}
}

// assign writes the merged values back to the flags that the command line left alone.
func assign(fs *pflag.FlagSet, merged *koanf.Koanf, variables map[string]any) error {
	var failed error
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Changed || !isConfigurable(f) || failed != nil {
			return
		}
		value, ok := merged.Get(f.Name).(string)
		if !ok || value == f.Value.String() {
			return
		}
		if err := fs.Set(f.Name, value); err != nil {
			source := "the configuration file"
			if _, ok := variables[f.Name]; ok {
				source = variable(f.Name)
			}
			failed = badValue(f.Name, value, allowedValues(f)+" (it comes from "+source+")")
		}
	})
	return failed
}

// variable names the environment variable of a flag.
func variable(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// flagName names the flag of a variable or file key; NODE_ID, node_id and node-id are one.
func flagName(key string) string {
	return strings.ToLower(strings.ReplaceAll(key, "_", "-"))
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func each[A, B any](items []A, fn func(A) B) []B {
	mapped := make([]B, len(items))
	for i, item := range items {
		mapped[i] = fn(item)
	}
	return mapped
}
