package ring_test

import (
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/ring"
)

// FuzzRing plays a script of calls and of bytes that a peer writes into the
// header. What the calls return lies within the data; and as long as nobody has
// scribbled, what comes out is what went in.
func FuzzRing(f *testing.F) {
	f.Add([]byte{moveBegin, 0, movePut, 10, moveEndPut, byCommit, moveBegin, 1, moveGet, 8, moveEndGet, byCommit, moveLook, 0})
	f.Add([]byte{moveBegin, 0, movePut, 30, moveEndPut, byPublish, moveBegin, 1, moveGet, 30, moveEndGet, byPublish, movePut, 20, moveEndPut, byCommit, moveGet, 30})
	f.Add([]byte{moveBegin, 0, movePut, 10, moveEndPut, byCancel, moveBegin, 0, moveBegin, 0, movePut, 40, moveLook, 1, moveEndPut, byCommit})
	f.Add([]byte{moveBegin, 0, movePut, 10, moveEndPut, byCommit, moveScribble, 32, 200, moveBegin, 1, moveGet, 8, moveLook, 0})
	f.Add([]byte{moveBegin, 0, moveScribble, 24, 33, movePut, 8, moveScribble, 31, 255, movePut, 8, moveEndPut, byCommit, moveBegin, 0})
	f.Add([]byte{moveScribble, 0, 0, moveScribble, 8, 255, moveScribble, 15, 255, moveScribble, 17, 1, moveBegin, 0, moveBegin, 1, moveGet, 5})
	f.Fuzz(func(t *testing.T, script []byte) { newGame(t).play(script) })
}

// Moves of a script. Each has an argument.
const (
	moveBegin    = iota // the producer if even, else the consumer
	movePut             // so many bytes
	moveEndPut          // by publish, commit or cancel
	moveGet             // so many bytes
	moveEndGet          // by publish, commit or cancel
	moveLook            // how much there is
	moveScribble        // at this place, and the next byte is what
	moves
)

// Ways to end.
const (
	byPublish = iota
	byCommit
	byCancel
	ways
)

const arena = 32

// game plays a script and knows what an honest ring holds.
type game struct {
	t            *testing.T
	header, data []byte
	p            *ring.Producer
	c            *ring.Consumer
	honest       bool
	count        byte   // the next byte to put in
	pending      []byte // put in, but not for the consumer yet
	stored       []byte // for the consumer
	taken        int    // of stored, but the producer does not know
	putting      bool   // in a transaction
	getting      bool
}

func newGame(t *testing.T) *game {
	r, h, data := local(t, arena)
	return &game{t: t, header: h, data: data, p: r.Producer(), c: r.Consumer(), honest: true}
}

func (g *game) play(script []byte) {
	for len(script) > 2 {
		arg := int(script[1])
		switch script[0] % moves {
		case moveBegin:
			g.begin(arg)
		case movePut:
			g.put(arg)
		case moveEndPut:
			g.endPut(arg % ways)
		case moveGet:
			g.get(arg)
		case moveEndGet:
			g.endGet(arg % ways)
		case moveLook:
			g.look()
		case moveScribble:
			g.honest = false
			g.header[arg%len(g.header)] = script[2]
			script = script[1:]
		}
		script = script[2:]
	}
}

func (g *game) begin(who int) {
	side, mine := &g.p.Side, &g.putting
	if who%2 != 0 {
		side, mine = &g.c.Side, &g.getting
	}
	err := side.Begin()
	if *mine {
		require.ErrorIs(g.t, err, ring.ErrBusy)
		return
	}
	if g.honest {
		require.NoError(g.t, err)
	}
	*mine = err == nil
}

// next makes a call of Next, of which an honest ring gives want bytes.
func (g *game) next(side *ring.Side, begun bool, n, want int) (first, second []byte) {
	first, second, err := side.Next(n)
	require.LessOrEqual(g.t, len(first)+len(second), min(n, arena))
	g.requireWithin(first)
	g.requireWithin(second)
	switch {
	case !begun:
		require.ErrorIs(g.t, err, ring.ErrIdle)
	case g.honest:
		require.NoError(g.t, err)
		require.Equal(g.t, min(n, want), len(first)+len(second))
	case err != nil:
		require.ErrorIs(g.t, err, ring.ErrCorrupt)
	}
	return first, second
}

func (g *game) requireWithin(span []byte) {
	if len(span) > 0 {
		at := uintptr(unsafe.Pointer(&span[0])) - uintptr(unsafe.Pointer(&g.data[0]))
		require.LessOrEqual(g.t, at+uintptr(cap(span)), uintptr(arena))
	}
}

func (g *game) put(n int) {
	first, second := g.next(&g.p.Side, g.putting, n, arena-len(g.stored)-len(g.pending))
	for _, span := range [][]byte{first, second} {
		for i := range span {
			span[i] = g.count
			g.count++
		}
		g.pending = append(g.pending, span...)
	}
}

func (g *game) get(n int) {
	first, second := g.next(&g.c.Side, g.getting, n, len(g.stored)-g.taken)
	got := slices.Concat(first, second)
	if g.honest && len(got) > 0 {
		require.Equal(g.t, g.stored[g.taken:][:len(got)], got)
	}
	g.taken += len(got)
}

func (g *game) endPut(how int) {
	g.end(&g.p.Side, &g.putting, how)
	if how != byCancel {
		g.stored = append(g.stored, g.pending...)
	}
	g.pending = nil
}

func (g *game) endGet(how int) {
	g.end(&g.c.Side, &g.getting, how)
	if how != byCancel {
		g.stored = g.stored[min(g.taken, len(g.stored)):]
	}
	g.taken = 0
}

func (g *game) end(side *ring.Side, begun *bool, how int) {
	err := [ways]func() error{side.Publish, side.Commit, side.Cancel}[how]()
	if !*begun {
		require.ErrorIs(g.t, err, ring.ErrIdle)
		return
	}
	require.NoError(g.t, err)
	*begun = how == byPublish
}

func (g *game) look() {
	free, errFree := g.p.Free()
	readable, errReadable := g.c.Readable()
	if g.honest {
		require.NoError(g.t, errFree)
		require.NoError(g.t, errReadable)
		require.Equal(g.t, arena-len(g.stored)-len(g.pending), free)
		require.Equal(g.t, len(g.stored)-g.taken, readable)
	}
	require.True(g.t, free >= 0 && free <= arena)
	require.True(g.t, readable >= 0 && readable <= arena)
}
