package main

import (
	"context"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

const setHelp = `Changes settings of a pool on every node alike, at once and without a restart. A pool that does
not exist yet is created. Names may be written max_wait, max-wait or maxWait; durations like 45s or
7d; lists with commas. The values none and default take a setting back to its default.`

const setExample = `  kvgate settings set headroom=0.85 max_wait=45s
  kvgate settings set --pool qwen router-url=http://router:30000 scope=all
  kvgate settings set expected_decode_cap=none`

func newSettingsCommand(m *Main) *cobra.Command {
	return groupCommand("settings", groupOperate, "Show or change the settings of a pool",
		newSettingsGetCommand(m), newSettingsSetCommand(m))
}

func newSettingsGetCommand(m *Main) *cobra.Command {
	cmd := &cobra.Command{
		Use: "get [NAME…]", Short: "Show the settings of a pool",
		Long:    "Shows all settings of a pool, or those named, and whether each has its default value.",
		Example: "  kvgate settings get\n  kvgate settings get max_wait headroom --pool qwen",
	}
	return clientCommand(m, cmd, func(ctx context.Context, c *client, args []string) error {
		wanted, err := settingsNamed(args)
		if err != nil {
			return err
		}
		answer, err := call(ctx, c, (*endpoint).GetSettings, &kvgatev1.GetSettingsRequest{Pool: c.pool})
		if err != nil {
			return err
		}
		return c.print(
			func(w io.Writer) error { return writeJSON(w, answer) },
			func(w io.Writer) error { return writeSettings(w, answer.Settings, wanted) },
		)
	})
}

func newSettingsSetCommand(m *Main) *cobra.Command {
	cmd := &cobra.Command{
		Use: "set NAME=VALUE…", Short: "Change settings of a pool", Long: setHelp, Example: setExample,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("settings set: a setting is missing: use NAME=VALUE…")
			}
			return nil
		},
	}
	return clientCommand(m, cmd, func(ctx context.Context, c *client, args []string) error {
		req := &kvgatev1.UpdateSettingsRequest{Pool: c.pool, Settings: &kvgatev1.Settings{}}
		if err := parseSettings(args, req); err != nil {
			return err
		}
		answer, err := call(ctx, c, (*endpoint).UpdateSettings, req)
		if err != nil {
			return err
		}
		return c.print(
			func(w io.Writer) error { return writeJSON(w, answer) },
			func(w io.Writer) error { return writeSettings(w, answer.Settings, nil) },
		)
	})
}

// parseSettings reads NAME=VALUE words into a request.
func parseSettings(words []string, req *kvgatev1.UpdateSettingsRequest) error {
	var seen []string
	for _, w := range words {
		name, value, ok := strings.Cut(w, "=")
		if !ok {
			return badValue("settings", w, "NAME=VALUE")
		}
		s, err := settingNamed(name)
		if err != nil {
			return err
		}
		if slices.Contains(seen, s.name()) {
			return usagef("%s: given twice", s.name())
		}
		seen = append(seen, s.name())
		if value == "none" || value == "default" || value == "" {
			req.Clear = append(req.Clear, s.name())
			continue
		}
		if err := s.set(req.Settings, value); err != nil {
			return err
		}
	}
	return nil
}

// settingsNamed returns the settings that words name; nil for no words.
func settingsNamed(words []string) ([]setting, error) {
	var named []setting
	for _, w := range words {
		s, err := settingNamed(w)
		if err != nil {
			return nil, err
		}
		named = append(named, s)
	}
	return named, nil
}

// writeSettings writes the wanted settings, all for nil, and what their default is.
func writeSettings(w io.Writer, settings *kvgatev1.Settings, wanted []setting) error {
	if wanted == nil {
		wanted = allSettings()
	}
	defaults := defaultSettings()
	rows := make([][]string, len(wanted))
	for i, s := range wanted {
		value, def := s.text(settings), s.text(defaults)
		note := "default"
		if value != def {
			note = "changed; default " + def
		}
		rows[i] = []string{s.name(), value, note}
	}
	return writeTable(w, "no settings", []column{left("setting"), left("value"), left("note")}, rows)
}
