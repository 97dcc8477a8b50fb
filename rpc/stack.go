package rpc

import "net/http"

// stackRoom is about how much stack a call takes, in bytes.
const stackRoom = 11 << 10

// roomy has a call's goroutine grow its stack at once, while there is little on it to copy. It begins with
// some 2 KiB and would double three times on the way down, with all frames copied each time. What a blocked
// Acquire keeps is the same either way.
func roomy(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		growStack(len(r.Method))
		next.ServeHTTP(w, r)
	})
}

// growStack needs so much stack itself. It reads what it has at i, so that the compiler keeps it.
//
//go:noinline
func growStack(i int) byte {
	var room [stackRoom]byte
	return room[i%stackRoom]
}
