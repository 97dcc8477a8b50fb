package main

import (
	"context"
	"encoding/json"
	"io"
	"os"

	"github.com/spf13/cobra"

	kvgatev1 "kvgate/rpc/kvgate/v1"
)

const sessionPinHelp = `Keeps a conversation prefix from eviction for a while: its tokens are taken out of the pool's ceiling,
at most pin_ratio of it, and engines that know pins are asked to hold the prefix when its token ids are
given. --ttl takes whole seconds ("600"), "5m" or "1h", and is kept between 5m and 1h. Pinning again
keeps the later expiry.`

const sessionPinExample = `  kvgate session pin system-prompt --tokens 4096 --ttl 30m
  kvgate session pin system-prompt --token-ids ids.json --engine http://e1:30000
  kvgate session pin agent-17/tools --tokens 2000 --session agent-17`

func newSessionPinCommand(m *Main) *cobra.Command {
	var (
		req  kvgatev1.PinPrefixRequest
		file string
	)
	cmd := &cobra.Command{
		Use: "pin PIN (--tokens N | --token-ids FILE)", Short: "Keep a prefix from eviction for a while",
		Long: sessionPinHelp, Example: sessionPinExample, Args: maxArgs(1, "one PIN"),
	}
	countVar(cmd.Flags(), &req.Tokens, "tokens", 0, "length of the prefix")
	cmd.Flags().StringVar(&file, "token-ids", "", "file that holds the prefix as a JSON list of token ids")
	cmd.Flags().StringVar(&req.SessionId, "session", "", "session that the pin goes with")
	cmd.Flags().StringVar(&req.EngineUrl, "engine", "", "engine to pin on (default: all)")
	cmd.Flags().StringVar(&req.Ttl, "ttl", "", "time to live (default: 5m)")
	return clientCommand(m, cmd, func(ctx context.Context, c *client, args []string) (err error) {
		if req.PinId, err = pinArgument(args); err != nil {
			return err
		}
		req.Pool = c.pool
		if req.TokenIds, err = readTokenIDs(file); err != nil {
			return err
		}
		if (req.Tokens > 0) == (len(req.TokenIds) > 0) {
			return usagef("tokens, token-ids: give one of them")
		}
		answer, err := call(ctx, c, (*endpoint).PinPrefix, &req)
		if err != nil {
			return err
		}
		return c.print(
			func(w io.Writer) error { return writeJSON(w, answer) },
			func(w io.Writer) error { return writePins(w, []*kvgatev1.Pin{answer.Pin}) },
		)
	})
}

func pinArgument(args []string) (string, error) {
	if len(args) == 0 {
		return "", usagef("a pin is missing: give its id as argument")
	}
	return args[0], nil
}

// readTokenIDs reads a JSON list of numbers; nil without a file.
func readTokenIDs(path string) (ids []int32, err error) {
	if path == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, usagef("token-ids: %s", err)
	}
	if err := json.Unmarshal(raw, &ids); err != nil || len(ids) == 0 {
		return nil, badValue("token-ids", path, "a file that holds a JSON list of token ids such as [128000, 15339]")
	}
	return ids, nil
}

func newSessionUnpinCommand(m *Main) *cobra.Command {
	cmd := &cobra.Command{
		Use: "unpin PIN", Short: "Drop a pin", Long: "Drops a pin before its time. Its tokens are back in the ceiling at once.",
		Example: "  kvgate session unpin system-prompt", Args: maxArgs(1, "one PIN"),
	}
	return clientCommand(m, cmd, func(ctx context.Context, c *client, args []string) error {
		id, err := pinArgument(args)
		if err != nil {
			return err
		}
		answer, err := call(ctx, c, (*endpoint).UnpinPrefix, &kvgatev1.UnpinPrefixRequest{Pool: c.pool, PinId: id})
		if err != nil {
			return err
		}
		return c.print(
			func(w io.Writer) error { return writeJSON(w, answer) },
			func(w io.Writer) error {
				return writeDetails(w, [][2]string{{"pin", id}, {"unpinned", yesNo(answer.Unpinned)}})
			},
		)
	})
}

func newSessionPinsCommand(m *Main) *cobra.Command {
	var (
		req   kvgatev1.ListPinsRequest
		limit int64
	)
	cmd := &cobra.Command{
		Use: "pins", Short: "List the pins of a pool", Long: "Lists the pins of a pool by id, and which engines hold the prefix.",
		Example: "  kvgate session pins\n  kvgate session pins --session agent-17", Args: maxArgs(0, "flags only"),
	}
	cmd.Flags().StringVar(&req.SessionId, "session", "", "only pins of this session")
	staleFlag(cmd, &req.Stale)
	limitFlag(cmd, &limit, 0)
	return clientCommand(m, cmd, func(ctx context.Context, c *client, _ []string) error {
		req.Pool = c.pool
		pins, next, err := pages(limit, func(size int32, token string) ([]*kvgatev1.Pin, string, error) {
			req.PageSize, req.PageToken = size, token
			answer, err := call(ctx, c, (*endpoint).ListPins, &req)
			return answer.GetPins(), answer.GetNextPageToken(), err
		})
		if err != nil {
			return err
		}
		return c.print(
			func(w io.Writer) error {
				return writeJSON(w, &kvgatev1.ListPinsResponse{Pins: pins, NextPageToken: next})
			},
			func(w io.Writer) error { return writePins(w, pins) },
		)
	})
}

func writePins(w io.Writer, pins []*kvgatev1.Pin) error {
	rows := make([][]string, len(pins))
	for i, p := range pins {
		held := plural(len64(p.HeldBy), "engine")
		if p.LedgerOnly {
			held = "none: the ledger only"
		}
		rows[i] = []string{p.PinId, number(p.Tokens), span(p.ExpiresIn), held, p.SessionId, p.EngineUrl}
	}
	return writeTable(w, "no pins", []column{left("pin"), right("tokens"), right("expires in"), left("held by"), left("session"), left("engine")}, rows)
}
