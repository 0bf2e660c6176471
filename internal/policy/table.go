package policy

import (
	"hash/maphash"
	"math/bits"
	"strings"
)

// table finds what the rules of one policy say about a name. It is a hash table of the tree of labels:
// a node stands for a name, its parent for the name without the first label. A look-up walks from the top
// level down and ends at the first label that no rule has, so it costs the same for ten rules and for a
// million, and a name made to be long costs little.
//
// A slot is found by the hash of the labels down to it, which does not wait for its parent to be loaded,
// and is confirmed by parent and label, so that equal hashes never make two names one.
type table struct {
	seed  maphash.Seed
	slots []node // at most 3/4 in use
	long  []byte // labels that a node has no room for
	nodes uint32 // in use; also the number of the last node
}

// node is 32 bytes, half a cache line: a look-up of one label touches one line.
type node struct {
	id     uint32
	parent uint32 // id; 0 is the root, which has no node
	exact  ref    // what rules say about the node's own name
	below  ref    // what rules say about every name below it
	size   uint8  // of the label in octets; 0: slot is free
	flags  flags
	label  [14]byte // a longer label stands in table.long, at the offset in the first four bytes
}

type flags uint8

const (
	hasChildren flags = 1 << iota // a walk need not stop here
	allowsBelow                   // some rule allows a name below
	metadata                      // a cloud metadata name: allowed by an exact rule only
)

// ref is what the rules say at one place of the tree: nothing, one rule of the plain kind, or a grant.
type ref uint32

const (
	refNone       ref = 0
	refPlainAllow ref = 1 << 30 // one rule without ports allows; the rest is its index
	refPlainDeny  ref = 2 << 30 // one rule without ports denies; the rest is its index
	refGrant      ref = 3 << 30 // several rules, or ports; the rest is an index into Policy.grants
	refKind       ref = 3 << 30
	maxRules          = 1 << 30
)

func (r ref) kind() ref     { return r & refKind }
func (r ref) index() uint32 { return uint32(r &^ refKind) }

const tableMin = 64

// newTable makes a table that takes n nodes without growing.
func newTable(n int) *table {
	return &table{seed: maphash.MakeSeed(), slots: make([]node, max(n+n/3+1, tableMin))}
}

// slot is where the search for a node with the hash h begins.
func (t *table) slot(h uint64) int {
	hi, _ := bits.Mul64(h, uint64(len(t.slots)))
	return int(hi)
}

// next is the hash of a name, from that of its parent (0 for the root) and its first label.
func (t *table) next(parent uint64, label string) uint64 {
	return (parent ^ maphash.String(t.seed, label)) * 0x9e3779b97f4a7c15
}

// find returns the node for label below the node with the id parent, or nil.
func (t *table) find(h uint64, parent uint32, label string) *node {
	for i := t.slot(h); ; i++ {
		if i == len(t.slots) {
			i = 0
		}
		n := &t.slots[i]
		if n.size == 0 {
			return nil
		}
		if n.parent == parent && int(n.size) == len(label) && t.labelIs(n, label) {
			return n
		}
	}
}

func (t *table) labelIs(n *node, label string) bool {
	if len(label) <= len(n.label) {
		return string(n.label[:len(label)]) == label
	}
	off := offset(n.label)
	return string(t.long[off:off+uint32(len(label))]) == label
}

func (t *table) labelOf(n *node) string {
	if int(n.size) <= len(n.label) {
		return string(n.label[:n.size])
	}
	off := offset(n.label)
	return string(t.long[off : off+uint32(n.size)])
}

func offset(b [14]byte) uint32 {
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
}

// insert returns the node for name, making it and its ancestors where they are missing, and sets flags
// on each ancestor. Nodes move when the table grows: the result is valid until the next insert.
func (t *table) insert(name string, ancestors flags) *node {
	for int(t.nodes)+strings.Count(name, ".")+1 > len(t.slots)*3/4 {
		t.grow()
	}
	h, parent := uint64(0), uint32(0)
	for end := len(name); ; {
		i := lastDot(name, end)
		label := name[i+1 : end]
		h = t.next(h, label)
		n := t.find(h, parent, label)
		if n == nil {
			t.nodes++
			n = t.place(h, t.newNode(parent, label))
		}
		if i < 0 {
			return n
		}
		n.flags |= hasChildren | ancestors
		parent, end = n.id, i
	}
}

func (t *table) newNode(parent uint32, label string) node {
	n := node{id: t.nodes, parent: parent, size: uint8(len(label))}
	if len(label) <= len(n.label) {
		copy(n.label[:], label)
		return n
	}
	off := uint32(len(t.long))
	t.long = append(t.long, label...)
	n.label = [14]byte{byte(off), byte(off >> 8), byte(off >> 16), byte(off >> 24)}
	return n
}

func (t *table) place(h uint64, n node) *node {
	i := t.slot(h)
	for t.slots[i].size != 0 {
		if i++; i == len(t.slots) {
			i = 0
		}
	}
	t.slots[i] = n
	return &t.slots[i]
}

// grow makes the table half as large again. A node does not keep its hash, so hashes are made again from the top: parents
// have lower ids than their children.
func (t *table) grow() {
	old := t.slots
	at := make([]uint32, t.nodes+1) // slot of each id
	for i := range old {
		if old[i].size != 0 {
			at[old[i].id] = uint32(i)
		}
	}
	t.slots = make([]node, len(old)+len(old)/2)
	hashes := make([]uint64, t.nodes+1)
	for id := uint32(1); id <= t.nodes; id++ {
		n := old[at[id]]
		hashes[id] = t.next(hashes[n.parent], t.labelOf(&n))
		t.place(hashes[id], n)
	}
}

// lastDot returns the index of the last dot in name[:end], or -1. Labels are short: a loop beats the
// call of strings.LastIndexByte.
func lastDot(name string, end int) int {
	for i := end - 1; i >= 0; i-- {
		if name[i] == '.' {
			return i
		}
	}
	return -1
}
