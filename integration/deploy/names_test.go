package deploy

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// texts returns every file of deploy/ by name, but for scripts: those are run.
func texts(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	dir := filepath.Join(root, "deploy")
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) == ".sh" {
			return err
		}
		data, err := os.ReadFile(path)
		all[path] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Variables that the binary does not know would keep it from starting.
func TestVariablesExist(t *testing.T) {
	out, err := kvgate(t, []string{"KVGATE_NO_SUCH=1"}, "status")
	_, list, found := strings.Cut(strings.TrimSpace(out), "known are ")
	if exitCode(err) != 2 || !found {
		t.Fatalf("an unknown variable is answered with %v: %s", err, out)
	}
	known := strings.Split(list, ", ")
	for path, text := range texts(t) {
		for _, name := range regexp.MustCompile(`KVGATE_[A-Z_]+`).FindAllString(text, -1) {
			if !slices.Contains(known, name) {
				t.Errorf("%s: kvgate knows no %s", path, name)
			}
		}
	}
}

// Keys that are commented out in the examples are as good as the others.
func TestKeysExist(t *testing.T) {
	help, err := kvgate(t, nil, "serve", "--help")
	if err != nil {
		t.Fatal(err)
	}
	key := regexp.MustCompile(`(?m)^(?:# )?([a-z]+(?:-[a-z]+)+):`)
	for _, name := range []string{"systemd/kvgate.yaml", "compose/kvgate.yaml", "kubernetes/base/kvgate.yaml"} {
		keys := key.FindAllStringSubmatch(read(t, name), -1)
		if len(keys) < 4 {
			t.Errorf("%s: only %d keys were found", name, len(keys))
		}
		for _, k := range keys {
			if !strings.Contains(help, "--"+k[1]) {
				t.Errorf("%s: kvgate serve has no %s", name, k[1])
			}
		}
	}
}

var (
	// A command stands alone on a line or in backticks; lines that end in \ go on.
	inText = regexp.MustCompile("(?m)(?:^|`|exec |/)kvgate ([a-z][^`|;\n]*)")
	joined = strings.NewReplacer("\\\n", " ")
	flags  = regexp.MustCompile(`--[a-z][a-z-]*`)
)

// Commands and flags that README and runbooks tell people to type exist.
func TestCommandsExist(t *testing.T) {
	checked := 0
	for path, text := range texts(t) {
		for _, m := range inText.FindAllStringSubmatch(joined.Replace(text), -1) {
			checkCommand(t, path, m[1])
			checked++
		}
	}
	if checked < 20 {
		t.Errorf("only %d commands were found", checked)
	}
}

func checkCommand(t *testing.T, path, line string) {
	t.Helper()
	var words []string
	for _, word := range strings.Fields(line) {
		if !regexp.MustCompile(`^[a-z][a-z-]*$`).MatchString(word) || len(words) == 2 {
			break
		}
		words = append(words, word)
	}
	written := len(words)
	for ; len(words) > 0; words = words[:len(words)-1] {
		help, err := kvgate(t, nil, append(slices.Clone(words), "--help")...)
		if err != nil || !strings.Contains(help, "kvgate "+strings.Join(words, " ")) {
			continue
		}
		if written > len(words) && strings.Contains(help, "[command]") {
			break // of a command that has others, the next word must be one
		}
		for _, flag := range flags.FindAllString(line, -1) {
			if !strings.Contains(help, flag) {
				t.Errorf("%s: kvgate %s: there is no %s", path, line, flag)
			}
		}
		return
	}
	t.Errorf("%s: there is no command kvgate %s", path, line)
}
