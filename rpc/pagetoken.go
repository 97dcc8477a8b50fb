package rpc

import (
	"encoding/base64"
	"encoding/binary"
)

// A page token says where the next page of one kind of list starts. Callers must treat it as opaque;
// it holds no secret. Inside: the kind, two numbers and a text.
type pageToken struct {
	kind byte
	a, b uint64
	text string
}

// Kinds of page tokens, so that the token of one list is not taken for another's.
const (
	leasePage   = 'l'
	waiterPage  = 'w'
	journalPage = 'j'
	sessionPage = 's'
	pinPage     = 'p'
)

// String encodes the token for a URL, a shell and JSON alike.
func (t pageToken) String() string {
	raw := []byte{t.kind}
	raw = binary.AppendUvarint(raw, t.a)
	raw = binary.AppendUvarint(raw, t.b)
	return base64.RawURLEncoding.EncodeToString(append(raw, t.text...))
}

// parsePageToken returns the zero token, of the right kind, for "".
func parsePageToken(kind byte, s string) (pageToken, error) {
	t := pageToken{kind: kind}
	if s == "" {
		return t, nil
	}
	bad := invalid("pageToken", quote(s), "empty, or the nextPageToken of an earlier answer to the same call")
	raw, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(raw) == 0 || raw[0] != kind {
		return t, bad
	}
	a, n := binary.Uvarint(raw[1:])
	if n <= 0 {
		return t, bad
	}
	b, m := binary.Uvarint(raw[1+n:])
	if m <= 0 {
		return t, bad
	}
	t.a, t.b, t.text = a, b, string(raw[1+n+m:])
	return t, nil
}

// defaultPageSize is what page_size 0 means.
const defaultPageSize = 1000

func pageSize(n int32) int {
	if n == 0 {
		return defaultPageSize
	}
	return int(n)
}
