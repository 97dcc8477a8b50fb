// Package tlsfiles makes TLS configurations from PEM files that are read again when they change: every
// handshake uses the newest certificate, key and authorities, so certificates rotate without a restart
// and without a dropped connection. A new file that cannot be used is logged and the old one stays.
package tlsfiles
