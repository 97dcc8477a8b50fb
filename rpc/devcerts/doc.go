// Package devcerts makes throw-away authorities and certificates: for `kvgate certs dev`, and for tests of
// everything that speaks TLS. Keys are P-256; nothing here protects an authority's key beyond the mode of
// its file.
package devcerts
