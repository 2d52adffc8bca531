package interop

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/parity"
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
	})
	parity.Case(t, "interop/libtensorpipe.shm_cma", route{transport: "shm", channel: "cma"}.prove)
}

// everySize has each size that some path treats in a way of its own: nothing,
// fewer bytes than lanes, odd ones, a page, more than a ring holds.
var everySize = sync.OnceValue(func() *batch {
	sizes := []int{0, 1, 13, 4096, 1 << 20, large}
	return newBatch(Shape{Seed: 21, Sizes: sizes, Payloads: ptr(1), Tensors: ptr(2)}, len(sizes))
})

// anySize is messages that chance made.
var anySize = sync.OnceValue(func() *batch { return newBatch(Shape{Seed: 22}, 40) })

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
