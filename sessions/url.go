package sessions

import "strings"

// EngineURL returns the identity of the engine that raw names: without surrounding space, trailing
// slashes and a trailing "@rank", scheme and host in lower case. DP-aware routers list one URL per rank
// of an engine [sglang 26237, miles 2041]; a session belongs to the engine. Any string is taken: whether
// it is an engine of the pool is for the table to say.
func EngineURL(raw string) string {
	s := strings.TrimRight(strings.TrimSpace(raw), "/")
	if at := strings.LastIndexByte(s, '@'); at >= 0 && at < len(s)-1 && strings.Trim(s[at+1:], "0123456789") == "" {
		s = strings.TrimRight(s[:at], "/")
	}
	host := strings.Index(s, "://") + 3
	if host < 3 {
		return s
	}
	if path := strings.IndexByte(s[host:], '/'); path >= 0 {
		return strings.ToLower(s[:host+path]) + s[host+path:]
	}
	return strings.ToLower(s)
}
