// Package cluster tests three nodes as processes of their own while faults strike them.
//
// A [Cluster] runs the nodes, either all on the loopback interface or each in a network namespace of its
// own. The namespaces are joined by a [Wire]: every namespace has a TUN device whose packets the test
// process carries, so that it can cut, delay and lose them for each direction of each pair. That needs
// root, ip and /dev/net/tun, but no netem in the kernel. A [Load] runs many clients against all nodes and
// records every attempt and answer in a [History]. [Check] then proves from the journal that the answers
// are linearizable and that the invariants of the ledger held.
//
// Episodes of random faults run in TestChaos; KVGATE_CHAOS_SEED, KVGATE_CHAOS_EPISODES and
// KVGATE_CHAOS_DURATION choose which and how many.
package cluster
