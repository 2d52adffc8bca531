package interop

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/race"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestParityOfSameHost takes the paths between two processes of one machine, and
// mpt, which is for any two, with libtensorpipe at the other end.
func TestParityOfSameHost(t *testing.T) {
	parity.Case(t, "interop/libtensorpipe.uv_mpt", func(t *testing.T) {
		for _, lanes := range []int{2, 3, 16} {
			t.Run(fmt.Sprint(lanes, " lanes"), route{"uv", "mpt_uv", lanes}.prove)
		}
	})
	parity.Case(t, "interop/libtensorpipe.uv_cma", route{transport: "uv", channel: "cma"}.prove)
	parity.Case(t, "interop/libtensorpipe.shm_basic", func(t *testing.T) {
		shared := route{transport: "shm", channel: "basic"}
		shared.prove(t)
		t.Run("client, no upgrade", shared.clientDialsShared)
		t.Run("server, no upgrade", shared.peerDialsShared)
		t.Run("large descriptions", shared.largeDescriptions)
	})
	parity.Case(t, "interop/libtensorpipe.shm_cma", route{transport: "shm", channel: "cma"}.prove)
}

// What a pipe to libtensorpipe takes over shared memory where direct copies are refused.
func TestLanesBesideSharedMemory(t *testing.T) {
	route{"shm", "mpt_uv", 3}.prove(t)
}

// everySize has each size that some path treats in a way of its own: nothing,
// fewer bytes than lanes, odd ones, a page, more than a ring holds.
var everySize = sync.OnceValue(func() *batch {
	sizes := []int{0, 1, 13, 4096, 1 << 20, large}
	return newBatch(Shape{Seed: 21, Sizes: sizes, Payloads: ptr(1), Tensors: ptr(2)}, len(sizes))
})

// anySize is messages that chance made.
var anySize = sync.OnceValue(func() *batch { return newBatch(Shape{Seed: 22}, race.Pick(40, 15)) })

// prove takes the route in both roles and both directions, with messages that
// know no chance and such that do.
func (r route) prove(t *testing.T) {
	r.requireViable(t)
	for name, exchange := range map[string]func(t *testing.T, b *batch){
		"client, echo":      r.clientAgainstEcho,
		"client, sink":      r.clientAgainstSink,
		"client, both ways": r.clientBothWays,
		"server, echo":      r.serverEchoes,
		"server, source":    r.serverAgainstSource,
		"server, both ways": r.serverEchoesAllAtOnce,
	} {
		t.Run(name+", every size", func(t *testing.T) { exchange(t, everySize()) })
		t.Run(name+", random", func(t *testing.T) { exchange(t, anySize()) })
	}
	t.Run("peer killed", r.killed)
}

// clientDialsShared begins on shared memory, so that nothing is upgraded.
func (r route) clientDialsShared(t *testing.T) {
	peer := r.start(t, "echo")
	p, err := r.context(t).Dial(testContext(t), urlOf(t, "shm", strings.Fields(peer.URL())))
	require.NoError(t, err)
	r.requireTaken(t, p)
	echoes(t, p)
	require.NoError(t, p.Close())
	require.NoError(t, peer.Stop())
}

func (r route) peerDialsShared(t *testing.T) {
	l := r.listen(t)
	args := append([]string{"check", "--to", urlOf(t, "shm", l.URLs())}, r.flags()...)
	peer := Start(t, append(args, Shape{Seed: 23}.flags(20)...)...)
	r.echoAll(t, r.accept(t, l))
	require.NoError(t, peer.Wait())
}

// largeDescriptions sends messages of which a peer in C++ has to take the
// description out of its ring in one piece. One that does not fit is refused here,
// where it would end that process; those that do, and what moves in pieces, arrive.
func (r route) largeDescriptions(t *testing.T) {
	r.requireViable(t)
	peer := r.start(t, "echo")
	p := r.dial(t, peer)
	const ring = 2 << 20
	described := func(n int) Message { return Message{Metadata: bytes.Repeat([]byte("m"), n)} }
	for _, n := range []int{ring - 4, ring, 3 << 20} {
		err := p.Write(testContext(t), described(n).pipe())
		require.ErrorIs(t, err, pipe.ErrLimit, "%d bytes", n)
	}
	many := Message{Tensors: make([]Part, 60_000)}
	for _, sent := range []Message{described(ring - 32), many, {Payloads: []Part{{Data: make([]byte, 2*ring)}}}} {
		op := p.WriteAsync(testContext(t), sent.pipe())
		requireMessage(t, sent, p)
		require.NoError(t, op.Wait(testContext(t)))
	}
	echoes(t, p)
	require.NoError(t, p.Close())
	require.NoError(t, peer.Stop())
}
