package main

import (
	"fmt"
	"os"
	"strings"

	"kvgate/scrape"
)

// readKeys reads the key files that the configuration names.
func readKeys(cfg *ServeConfig) (scrape.Keys, error) {
	var keys scrape.Keys
	for _, k := range []struct {
		flag, path string
		into       *string
	}{
		{"router-key-file", cfg.RouterKeyFile, &keys.Router},
		{"engine-key-file", cfg.EngineKeyFile, &keys.Engine},
		{"engine-admin-key-file", cfg.EngineAdminKeyFile, &keys.EngineAdmin},
	} {
		if k.path == "" {
			continue
		}
		raw, err := os.ReadFile(k.path)
		if err != nil {
			return keys, fmt.Errorf("read --%s: %w", k.flag, err)
		}
		if *k.into = strings.TrimSpace(string(raw)); *k.into == "" {
			return keys, fmt.Errorf("--%s %s holds no key", k.flag, k.path)
		}
	}
	return keys, nil
}
