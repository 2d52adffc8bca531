package roster

import (
	"crypto/rand"
)

// phase is what a group is in.
type phase byte

const (
	absent   phase = iota // no member has ever come; never on the store
	open                  // static, and waits for members
	complete              // static, and all were there
	failed                // static, and members do not fit together
	ended                 // static, and all have left
	dynamic
	lastPhase
)

// gate is what decides about a group. A change is a new gate that takes the place
// of the one that it was made from, or fails.
type gate struct {
	raw   []byte  // as it is on the store; nil where there is none
	birth [8]byte // random, and kept from then on: another one is another store's
	gen   uint64
	seq   uint64 // grows with every change
	phase phase

	world   int         // of a static group
	lister  Incarnation // who wrote the list of a complete group
	failure *failure    // the last one, of this generation or of one before
	members []Member    // of a dynamic group, in the order of their ranks
}

// next is a gate to be changed, and then to take the place of g.
func (g *gate) next() *gate {
	n := *g
	n.seq++
	if g.phase == absent {
		_, _ = rand.Read(n.birth[:]) // it never fails
	}
	return &n
}

// opened begins the next generation.
func (g *gate) opened(p phase, world int) *gate {
	n := g.next()
	n.gen++
	n.phase, n.world, n.members, n.lister = p, world, nil, Incarnation{}
	return n
}

// vacant returns whether whoever comes may begin anew.
func (g *gate) vacant() bool {
	return g.phase == absent || g.phase == ended || g.phase == dynamic && len(g.members) == 0
}

// is returns whether a generation is still in this phase.
func (g *gate) is(p phase, gen uint64) bool { return g.phase == p && g.gen == gen }

// past returns whether nothing can become of a static generation any more.
func (g *gate) past(gen uint64) bool { return g.gen > gen || g.is(ended, gen) }

func (g *gate) encode() []byte {
	dst := append(begin(kindGate), byte(g.phase))
	dst = append(dst, g.birth[:]...)
	dst = appendNumber(dst, g.gen)
	dst = appendNumber(dst, g.seq)
	if g.failure == nil {
		dst = append(dst, 0)
	} else {
		dst = g.failure.append(append(dst, 1))
	}
	if g.phase == dynamic {
		return appendMembers(dst, g.members)
	}
	dst = appendNumber(dst, uint64(g.world))
	return append(dst, g.lister[:]...)
}

func decodeGate(value []byte) (*gate, error) {
	d := decode(value, kindGate)
	g := &gate{raw: value, phase: phase(d.byte())}
	if g.phase == absent || g.phase >= lastPhase {
		d.fail("a group in phase %d", g.phase)
	}
	copy(g.birth[:], d.take(len(g.birth)))
	g.gen, g.seq = d.number(maxNumber), d.number(maxNumber)
	if d.byte() != 0 {
		g.failure = d.failure()
	}
	if g.phase == dynamic {
		g.members = d.members(false)
	} else {
		g.world, g.lister = int(d.number(maxWorld)), d.incarnation()
		if g.world == 0 {
			d.fail("a group of nobody")
		}
	}
	if g.phase == failed && (g.failure == nil || g.failure.gen != g.gen) {
		d.fail("a group that failed for no reason")
	}
	return g, d.end()
}
