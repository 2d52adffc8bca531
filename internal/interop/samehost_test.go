package interop

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// A Go pipe and libtensorpipe exchange messages over shared memory, with direct copies between
// processes, and over several lanes.
func TestParityOfSameHost(t *testing.T) {
	parity.Case(t, "interop/libtensorpipe.uv_mpt", func(t *testing.T) {
		for _, lanes := range []int{2, 3, 16} {
			t.Run(fmt.Sprint(lanes, " lanes"), route{"uv", "mpt_uv", lanes}.exchangeAll)
		}
	})
	parity.Case(t, "interop/libtensorpipe.uv_cma", route{transport: "uv", channel: "cma"}.exchangeAll)
	parity.Case(t, "interop/libtensorpipe.shm_basic", func(t *testing.T) {
		shared := route{transport: "shm", channel: "basic"}
		shared.exchangeAll(t)
		t.Run("client, no upgrade", shared.clientDialsShared)
		t.Run("server, no upgrade", shared.peerDialsShared)
		t.Run("large descriptions", shared.largeDescriptions)
	})
	parity.Case(t, "interop/libtensorpipe.shm_cma", route{transport: "shm", channel: "cma"}.exchangeAll)
}

// A Go pipe and libtensorpipe exchange messages over shared memory with tensors on TCP lanes. This
// is the path where the system denies direct copies.
func TestLanesBesideSharedMemory(t *testing.T) {
	route{"shm", "mpt_uv", 3}.exchangeAll(t)
}

// fixedSizes has each size that some path treats differently: none, fewer bytes than lanes, odd
// sizes, a page, more than a ring holds.
var fixedSizes = sync.OnceValue(func() *batch {
	sizes := []int{0, 1, 13, 4096, 1 << 20, large}
	return newBatch(Shape{Seed: 21, Sizes: sizes, Payloads: ptr(1), Tensors: ptr(2)}, len(sizes))
})

// randomSizes has messages with random numbers and sizes of parts.
var randomSizes = sync.OnceValue(func() *batch { return newBatch(Shape{Seed: 22}, race.Pick(40, 15)) })

// exchangeAll exchanges messages with a C++ peer over r, in subtests: as client and as server, in
// one direction and in both, with fixed and with random sizes. It also runs killed. It skips the
// test if r does not work on this machine.
func (r route) exchangeAll(t *testing.T) {
	r.requireViable(t)
	for name, exchange := range map[string]func(t *testing.T, b *batch){
		"client, echo":      r.clientAgainstEcho,
		"client, sink":      r.clientAgainstSink,
		"client, both ways": r.clientBothWays,
		"server, echo":      r.serverEchoes,
		"server, source":    r.serverAgainstSource,
		"server, both ways": r.serverEchoesAllAtOnce,
	} {
		t.Run(name+", every size", func(t *testing.T) { exchange(t, fixedSizes()) })
		t.Run(name+", random", func(t *testing.T) { exchange(t, randomSizes()) })
	}
	t.Run("peer killed", r.killed)
}

// clientDialsShared dials the shared memory URL of a C++ peer, so that the handshake does not
// change the transport, and checks that messages are echoed.
func (r route) clientDialsShared(t *testing.T) {
	peer := r.start(t, "echo")
	p, err := r.context(t).Dial(testContext(t), urlOf(t, "shm", strings.Fields(peer.URL())))
	require.NoError(t, err)
	r.requireRoute(t, p)
	exchangeWithEcho(t, p)
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

// largeDescriptions checks that Write rejects a message whose descriptor does not fit into the ring
// of the C++ peer, which must read it in one piece, and that messages with smaller descriptors and
// large payloads arrive.
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
	exchangeWithEcho(t, p)
	require.NoError(t, p.Close())
	require.NoError(t, peer.Stop())
}
