// Package peer is the network between the nodes of a cluster: one listener that carries raft and the
// calls that nodes make to each other, because raft addresses are all that nodes know of each other.
//
// A connection starts with a hello that says what it is for and which cluster the dialler belongs to.
// A node of another cluster is refused with a reason. With TLS configured both sides show certificates,
// which are read again for every handshake, so that they can be rotated under load.
package peer
