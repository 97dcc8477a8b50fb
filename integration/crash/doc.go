// Package crash tests one node against sudden death and bad disks: a real process under load is killed
// with SIGKILL, its disk fills up or becomes read-only, and afterwards the node must know exactly what
// its clients were told.
//
// The tests of disks mount file systems, so they need root; they fail without it.
package crash
