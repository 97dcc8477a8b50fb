// Package reload keeps the content of files current: certificates and token lists that are exchanged
// while a node runs. Files are looked at when their content is asked for, so there is no goroutine and no
// watch to lose. A change that cannot be used is logged once, and what was read before stays in force.
package reload
