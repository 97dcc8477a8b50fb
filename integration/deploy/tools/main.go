// Command tools reads the files of deploy/ with the libraries of those they are for, and prints what they mean as JSON:
//
//	tools kubernetes DIR   what kustomize makes of DIR, each object decoded strictly into its type
//	tools compose FILE     the project, checked against the schema of the Compose specification
//	tools systemd FILE     the options of a unit
//	tools promql           for each expression of a JSON list on standard input: which series it reads and how
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "tools:", err)
		os.Exit(1)
	}
}

func run(args []string, stdin io.Reader, stdout io.Writer) (err error) {
	var facts any
	switch {
	case len(args) == 2 && args[0] == "kubernetes":
		facts, err = kubernetes(args[1])
	case len(args) == 2 && args[0] == "compose":
		facts, err = compose(args[1])
	case len(args) == 2 && args[0] == "systemd":
		facts, err = systemd(args[1])
	case len(args) == 1 && args[0] == "promql":
		facts, err = promql(stdin)
	default:
		err = fmt.Errorf("arguments %q: use kubernetes DIR, compose FILE, systemd FILE or promql", args)
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(facts)
}
