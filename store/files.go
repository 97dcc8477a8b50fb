package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
)

// writeJSON replaces path durably: after it returns, a crash leaves the new content; during it, old or new.
func writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	tmp := path + ".tmp"
	if err := writeSynced(tmp, append(data, '\n')); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("replace %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}

func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// syncDir makes renames and removals in a directory durable.
func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync directory %s: %w", path, err)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// damagedIn lists the files set aside in a directory.
func damagedIn(dir string) []string {
	var found []string
	entries, _ := os.ReadDir(dir) // an unreadable directory fails the rename that follows
	for _, e := range entries {
		if damagedName.MatchString(e.Name()) {
			found = append(found, filepath.Join(dir, e.Name()))
		}
	}
	return found
}

var damagedName = regexp.MustCompile(`\.damaged-([0-9]+)$`)

// setAside renames a rejected file to <path>.damaged-<n> for later study and removes those set aside before.
func setAside(path string, older []string, log *slog.Logger, reason string) (string, error) {
	n := 0
	for _, name := range older {
		k, err := strconv.Atoi(damagedName.FindStringSubmatch(name)[1])
		if err == nil {
			n = max(n, k)
		}
	}
	aside := fmt.Sprintf("%s.damaged-%d", path, n+1)
	if err := os.Rename(path, aside); err != nil {
		return "", fmt.Errorf("set aside: %w", err)
	}
	for _, name := range older {
		if err := os.Remove(name); err != nil && !os.IsNotExist(err) {
			log.Warn("cannot remove an older file set aside", "file", name, "error", err)
		}
	}
	log.Error("file set aside, it is rebuilt from snapshot and log", "file", path, "reason", reason, "aside", aside)
	return aside, syncDir(filepath.Dir(path))
}
