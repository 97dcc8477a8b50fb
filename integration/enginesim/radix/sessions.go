package radix

import "container/list"

// TombstoneLimit is how many closed session ids a scheduler remembers [sglang 27058, 29173].
const TombstoneLimit = 8192

// sessionIndex finds the tagged nodes of a session and remembers closed ids, oldest close first.
type sessionIndex struct {
	nodes  map[string]map[*Node]struct{}
	closed map[string]*list.Element
	order  *list.List
}

func newSessionIndex() sessionIndex {
	return sessionIndex{
		nodes:  map[string]map[*Node]struct{}{},
		closed: map[string]*list.Element{},
		order:  list.New(),
	}
}

// Tag marks n as the end of a finished request of a session and reports whether it did. Ids on the
// tombstone list are not tagged, and nobody is told: that is what the engine does.
func (t *Tree) Tag(n *Node, session string) bool {
	if _, closed := t.sessions.closed[session]; closed || session == "" || n == t.root {
		return false
	}
	if n.tags == nil {
		n.tags = make(map[string]struct{}, 1)
	}
	n.tags[session] = struct{}{}
	if t.sessions.nodes[session] == nil {
		t.sessions.nodes[session] = make(map[*Node]struct{}, 1)
	}
	t.sessions.nodes[session][n] = struct{}{}
	t.hold(n)
	return true
}

// Release closes a session the way SGLang 0.5.15.post1 does: the id gets a tombstone (whether or
// not it was ever seen), its tags go, and from each tagged node upwards the tokens are freed until
// the walk meets a branch, a lock, or another session's tag. It returns the number of tokens freed.
// A node under a lock at this moment loses its tag, so a second Release finds nothing.
func (t *Tree) Release(session string) int {
	freed := 0
	for _, leaf := range t.Forget(session) {
		for n := leaf; n.slot >= 0 && len(n.tags) == 0; {
			parent := n.parent
			freed += t.remove(n)
			n = parent
		}
	}
	return freed
}

// Forget closes a session the way SGLang does from 0.5.17 on: tombstone and tags as in Release, but
// every token stays cached until eviction wants it. It returns the nodes that lost their tag.
func (t *Tree) Forget(session string) []*Node {
	t.sessions.bury(session)
	tagged := t.sessions.nodes[session]
	delete(t.sessions.nodes, session)
	nodes := make([]*Node, 0, len(tagged))
	for n := range tagged {
		delete(n.tags, session)
		t.hold(n)
		nodes = append(nodes, n)
	}
	return nodes
}

func (t *Tree) hold(n *Node) {
	n.held = t.KeepReferenced && len(n.tags) > 0
	t.refile(n)
}

// Revive takes the tombstone of a session away, so that its id can be tagged again.
func (t *Tree) Revive(session string) { t.sessions.unbury(session) }

// Tombstones is the number of closed ids remembered.
func (t *Tree) Tombstones() int { return len(t.sessions.closed) }

// Tagged is the number of nodes that carry the session's tag.
func (t *Tree) Tagged(session string) int { return len(t.sessions.nodes[session]) }

func (s *sessionIndex) bury(session string) {
	s.unbury(session)
	s.closed[session] = s.order.PushBack(session)
	if len(s.closed) <= TombstoneLimit {
		return
	}
	if oldest, ok := s.order.Front().Value.(string); ok {
		s.unbury(oldest)
	}
}

func (s *sessionIndex) unbury(session string) {
	if e, ok := s.closed[session]; ok {
		s.order.Remove(e)
		delete(s.closed, session)
	}
}

// drop forgets a node that leaves the tree.
func (s *sessionIndex) drop(n *Node) {
	for session := range n.tags {
		delete(s.nodes[session], n)
		if len(s.nodes[session]) == 0 {
			delete(s.nodes, session)
		}
	}
	n.tags = nil
}
