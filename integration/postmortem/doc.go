// Package postmortem plays the engineer who is called in the morning: a node, a fleet and workers run, three things
// go wrong, a snapshot is saved and the node is gone. From the file alone the command line must name all three, with
// times and tickets.
package postmortem
