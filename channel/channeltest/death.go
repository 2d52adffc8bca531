package channeltest

import (
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/race"
)

var deathCases = []testCase{
	{"PeerClosesIdleChannel", func(t *testing.T, b Backend) {
		connect, listen := open(t, b)
		exchange(t, b, connect, listen, 100)
		connect.close(errTest)
		require.ErrorIs(t, listen.wantBroken(), io.EOF)
		p := usual(t, b)
		for _, n := range []int{0, 100} {
			require.ErrorIs(t, listen.recv(p.alloc(n)).wait(), io.EOF)
			require.ErrorIs(t, listen.send(p.alloc(n)).wait(), io.EOF)
		}
		listen.abort(0, errTest)
	}},

	{"AnyConnectionEnds", func(t *testing.T, b Backend) {
		for i := range b.New(t).Connections(b.native) {
			near, far := connections(t, b)
			e := openEnd(t, b, channel.RoleListen, near)
			require.NoError(t, far.conns[i].CloseWrite()) // Close with bytes unread would be a reset
			require.ErrorIs(t, e.wantBroken(), io.EOF, "connection %d", i)
		}
	}},

	{"WaitingTransfers", func(t *testing.T, b Backend) {
		near, far := connections(t, b)
		e := openEnd(t, b, channel.RoleConnect, near)
		p := usual(t, b)
		recv, send := e.recv(p.alloc(100)), e.send(p.alloc(stuck))
		far.close()
		require.Error(t, recv.wait())
		if err := send.wait(); onHost(b, t) {
			require.Error(t, err)
		}
		require.Error(t, e.wantBroken())
	}},

	{"AtEveryStep", deathAtEveryStep},
}

// One end dies at its first call on a connection, at its second, and so on, until
// a run needs no more calls than that. Under the race detector it is every third
// call, and the last ones.
func deathAtEveryStep(t *testing.T, b Backend) {
	const most = 10_000
	stride := race.Pick(1, 3)
	for step := 0; step < most; step += stride {
		if !eitherDiesAt(t, b, step) {
			for last := step - stride + 1; last < step; last++ {
				eitherDiesAt(t, b, last)
			}
			return
		}
	}
	require.Fail(t, "no end of steps")
}

// eitherDiesAt reports whether one of the ends lived long enough for that.
func eitherDiesAt(t *testing.T, b Backend, step int) bool {
	t.Helper()
	one, other := dieAt(t, b, step, channel.RoleConnect), dieAt(t, b, step, channel.RoleListen)
	return one || other
}

// dieAt reports whether that end lived long enough to die at this step.
func dieAt(t *testing.T, b Backend, step int, victim channel.Role) bool {
	t.Helper()
	near, far := connections(t, b)
	var k *killer
	if victim == channel.RoleConnect {
		k = newKiller(near, step)
		near = k.wrap()
	} else {
		k = newKiller(far, step)
		far = k.wrap()
	}
	connect, listen := openOn(t, b, near, far)
	attempt(usual(t, b), connect, listen, fmt.Sprintf("death of %v at step %d", victim, step))
	connect.close(errTest)
	listen.close(errTest)
	return k.struck()
}

// attempt sends tensors both ways and waits until each has arrived in full or
// failed.
func attempt(p place, connect, listen *end, name string) {
	p.t.Helper()
	type arrival struct {
		recv *transfer
		dst  device.Buffer
		want []byte
	}
	var sends []*transfer
	var arrivals []arrival
	for i, n := range []int{10, 600_000, 20} {
		data := random(n, uint64(i))
		sends = append(sends, connect.send(p.holding(data)), listen.send(p.holding(data)))
		for _, e := range []*end{connect, listen} {
			dst := p.alloc(n)
			arrivals = append(arrivals, arrival{e.recv(dst), dst, data})
		}
	}
	for _, tr := range sends {
		_ = tr.wait()
	}
	for _, a := range arrivals {
		if a.recv.wait() == nil {
			p.want(a.want, a.dst, name)
		}
	}
}
