package scrape

import (
	"fmt"
	"net/url"
	"strings"
)

// EngineURL returns the identity of the engine that raw points to: scheme://host:port in lower case,
// with neither "@rank" nor trailing slash, query or fragment. A path prefix stays.
//
// Routers that know data parallelism list http://host:port@R for rank R of one engine. The suffix goes
// before the URL is parsed: a parser reads "host:port" as user info and "R" as the host (sglang 26237,
// miles 2041).
func EngineURL(raw string) (string, error) {
	s, _ := cutRank(raw)
	u, err := url.Parse(s)
	if err != nil {
		return "", fmt.Errorf("%w: %q", ErrBadURL, clip(raw))
	}
	scheme := strings.ToLower(u.Scheme)
	if scheme != "http" && scheme != "https" || u.Hostname() == "" {
		return "", fmt.Errorf("%w: %q", ErrBadURL, clip(raw))
	}
	if u.User != nil {
		return "", fmt.Errorf("%w: %q holds user info; keys belong in key files", ErrBadURL, u.Redacted())
	}
	return scheme + "://" + strings.ToLower(u.Host) + strings.TrimRight(u.EscapedPath(), "/"), nil
}

// cutRank takes a trailing "@digits" off, and slashes around it.
func cutRank(raw string) (base, rank string) {
	s := strings.TrimRight(strings.TrimSpace(raw), "/")
	at := strings.LastIndexByte(s, '@')
	if at < 0 || at == len(s)-1 || strings.Trim(s[at+1:], "0123456789") != "" {
		return s, ""
	}
	return strings.TrimRight(s[:at], "/"), s[at+1:]
}

// join appends an endpoint to a base URL that may or may not end in a slash.
func join(base, endpoint string) string { return strings.TrimRight(base, "/") + endpoint }
