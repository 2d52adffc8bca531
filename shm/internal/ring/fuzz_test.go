package ring_test

import (
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/shm/internal/ring"
)

// FuzzRing runs a script of calls and of bytes that a peer writes to the header. What the calls
// return must lie within the data, and until the header is overwritten the bytes read must be those
// written.
func FuzzRing(f *testing.F) {
	f.Add([]byte{moveBegin, 0, movePut, 10, moveEndPut, byCommit, moveBegin, 1, moveGet, 8, moveEndGet, byCommit, moveCheck, 0})
	f.Add([]byte{moveBegin, 0, movePut, 30, moveEndPut, byPublish, moveBegin, 1, moveGet, 30, moveEndGet, byPublish, movePut, 20, moveEndPut, byCommit, moveGet, 30})
	f.Add([]byte{moveBegin, 0, movePut, 10, moveEndPut, byCancel, moveBegin, 0, moveBegin, 0, movePut, 40, moveCheck, 1, moveEndPut, byCommit})
	f.Add([]byte{moveBegin, 0, movePut, 10, moveEndPut, byCommit, moveScribble, 32, 200, moveBegin, 1, moveGet, 8, moveCheck, 0})
	f.Add([]byte{moveBegin, 0, moveScribble, 24, 33, movePut, 8, moveScribble, 31, 255, movePut, 8, moveEndPut, byCommit, moveBegin, 0})
	f.Add([]byte{moveScribble, 0, 0, moveScribble, 8, 255, moveScribble, 15, 255, moveScribble, 17, 1, moveBegin, 0, moveBegin, 1, moveGet, 5})
	f.Fuzz(func(t *testing.T, script []byte) { newScript(t).play(script) })
}

// Operations of a script. Each has an argument.
const (
	moveBegin    = iota // a producer if the argument is even, otherwise a consumer
	movePut             // the argument is a number of bytes
	moveEndPut          // by publish, commit or cancel
	moveGet             // the argument is a number of bytes
	moveEndGet          // by publish, commit or cancel
	moveCheck           // checks how much is available
	moveScribble        // overwrites the byte at the argument with the next byte
	moves
)

// Ways to end a transaction.
const (
	byPublish = iota
	byCommit
	byCancel
	ways
)

const arena = 32

// script runs a script and keeps what an honest ring would contain.
type script struct {
	t            *testing.T
	header, data []byte
	p            *ring.Producer
	c            *ring.Consumer
	honest       bool
	count        byte   // next byte to write
	pending      []byte // written, not published
	stored       []byte // published to the consumer
	taken        int    // bytes of stored that were read, not published
	putting      bool   // in a transaction
	getting      bool
}

func newScript(t *testing.T) *script {
	r, h, data := local(t, arena)
	return &script{t: t, header: h, data: data, p: r.Producer(), c: r.Consumer(), honest: true}
}

func (g *script) play(script []byte) {
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
		case moveCheck:
			g.checkAvailable()
		case moveScribble:
			g.honest = false
			g.header[arg%len(g.header)] = script[2]
			script = script[1:]
		}
		script = script[2:]
	}
}

func (g *script) begin(who int) {
	side, mine := &g.p.End, &g.putting
	if who%2 != 0 {
		side, mine = &g.c.End, &g.getting
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

// next calls side.Next(n), checks that the slices lie within the ring, and returns them. It also
// checks the error, and in a ring whose header was not overwritten that min(n, want) bytes were
// returned. begun is true if side is in a transaction.
func (g *script) next(side *ring.End, begun bool, n, want int) (first, second []byte) {
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

func (g *script) requireWithin(span []byte) {
	if len(span) > 0 {
		at := uintptr(unsafe.Pointer(&span[0])) - uintptr(unsafe.Pointer(&g.data[0]))
		require.LessOrEqual(g.t, at+uintptr(cap(span)), uintptr(arena))
	}
}

func (g *script) put(n int) {
	first, second := g.next(&g.p.End, g.putting, n, arena-len(g.stored)-len(g.pending))
	for _, span := range [][]byte{first, second} {
		for i := range span {
			span[i] = g.count
			g.count++
		}
		g.pending = append(g.pending, span...)
	}
}

func (g *script) get(n int) {
	first, second := g.next(&g.c.End, g.getting, n, len(g.stored)-g.taken)
	got := slices.Concat(first, second)
	if g.honest && len(got) > 0 {
		require.Equal(g.t, g.stored[g.taken:][:len(got)], got)
	}
	g.taken += len(got)
}

func (g *script) endPut(how int) {
	g.end(&g.p.End, &g.putting, how)
	if how != byCancel {
		g.stored = append(g.stored, g.pending...)
	}
	g.pending = nil
}

func (g *script) endGet(how int) {
	g.end(&g.c.End, &g.getting, how)
	if how != byCancel {
		g.stored = g.stored[min(g.taken, len(g.stored)):]
	}
	g.taken = 0
}

func (g *script) end(side *ring.End, begun *bool, how int) {
	err := [ways]func() error{side.Publish, side.Commit, side.Cancel}[how]()
	if !*begun {
		require.ErrorIs(g.t, err, ring.ErrIdle)
		return
	}
	require.NoError(g.t, err)
	*begun = how == byPublish
}

func (g *script) checkAvailable() {
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
