// Package tokens reads files of bearer tokens and says who a token belongs to. A file has one token a
// line, `token role [pool,…]`; blank lines and lines that start with # are skipped. Tokens are kept as
// hashes only and appear in no error and no log.
package tokens
