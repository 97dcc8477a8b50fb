package main

import (
	"errors"
	"io"
	"net/http"
	"strings"
)

// errSpeaksTLS: a server that speaks TLS was called without it.
var errSpeaksTLS = errors.New("the server speaks TLS: use https://, and --tls-ca unless the system trusts its certificate")

// noticeTLS tells what a server means that answers a call without TLS with a bare 400.
type noticeTLS struct{ *http.Transport }

// RoundTrip implements http.RoundTripper.
func (n noticeTLS) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := n.Transport.RoundTrip(req)
	if err != nil || req.URL.Scheme != "http" || res.StatusCode != http.StatusBadRequest || res.ProtoAtLeast(1, 1) {
		return res, err
	}
	defer res.Body.Close()
	// The words of Go's server, and of others such as nginx: "... HTTP request ... HTTPS ...".
	text, _ := io.ReadAll(io.LimitReader(res.Body, 1024)) // what came tells enough
	if strings.Contains(string(text), "HTTPS") {
		return nil, errSpeaksTLS
	}
	res.Body = io.NopCloser(strings.NewReader(string(text)))
	return res, nil
}
