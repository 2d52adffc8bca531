package channeltest

import (
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

var peerLossCases = []testCase{
	{"PeerClosesIdleChannel", func(t *testing.T, b Backend) {
		connect, listen := open(t, b)
		exchange(t, b, connect, listen, 100)
		connect.close(errTest)
		require.ErrorIs(t, listen.wantBroken(), io.EOF)
		p := defaultAllocator(t, b)
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
			require.NoError(t, far.conns[i].CloseWrite()) // Close with unread bytes would be a reset
			require.ErrorIs(t, e.wantBroken(), io.EOF, "connection %d", i)
		}
	}},

	{"WaitingTransfers", func(t *testing.T, b Backend) {
		near, far := connections(t, b)
		e := openEnd(t, b, channel.RoleConnect, near)
		p := defaultAllocator(t, b)
		recv, send := e.recv(p.alloc(100)), e.send(p.alloc(blockingSize))
		far.close()
		require.Error(t, recv.wait())
		if err := send.wait(); inHostMemory(b, t) {
			require.Error(t, err)
		}
		require.Error(t, e.wantBroken())
	}},

	{"AtEveryCall", lossAtEveryCall},
}

// One end dies at its first call on a connection, at its second, and so on, until the transfers
// need fewer calls. Under the race detector only every third call and the last ones are tested.
func lossAtEveryCall(t *testing.T, b Backend) {
	const most = 10_000
	stride := race.Pick(1, 3)
	for atCall := 0; atCall < most; atCall += stride {
		if !eitherKilledAt(t, b, atCall) {
			for last := atCall - stride + 1; last < atCall; last++ {
				eitherKilledAt(t, b, last)
			}
			return
		}
	}
	require.Fail(t, "the transfers do not complete")
}

// eitherKilledAt runs the transfers once for each end that dies, and reports whether one of them
// made that many calls.
func eitherKilledAt(t *testing.T, b Backend, atCall int) bool {
	t.Helper()
	one, other := killAt(t, b, atCall, channel.RoleConnect), killAt(t, b, atCall, channel.RoleListen)
	return one || other
}

// killAt runs the transfers while one end dies at the given call, and reports whether it made that
// many calls.
func killAt(t *testing.T, b Backend, atCall int, killedRole channel.Role) bool {
	t.Helper()
	near, far := connections(t, b)
	var k *connKiller
	if killedRole == channel.RoleConnect {
		k = newConnKiller(near, atCall)
		near = k.wrap()
	} else {
		k = newConnKiller(far, atCall)
		far = k.wrap()
	}
	connect, listen := openOn(t, b, near, far)
	tryTransfers(defaultAllocator(t, b), connect, listen, fmt.Sprintf("death of %v at call %d", killedRole, atCall))
	connect.close(errTest)
	listen.close(errTest)
	return k.fired()
}

// tryTransfers sends tensors in both directions, waits until each has succeeded or failed, and
// checks those that succeeded.
func tryTransfers(p allocator, connect, listen *end, name string) {
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
		sends = append(sends, connect.send(p.allocWith(data)), listen.send(p.allocWith(data)))
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

// hostileCases send a frame that no channel expects, from a peer that is no channel, during a
// transfer of 100 bytes in each direction.
var hostileCases = []testCase{
	{"EmptyFrame", hostileFrame(transport.Frame{})},
	{"ShortFrame", hostileFrame(transport.Frame{[]byte("\xb9\x01\x83 no")})},
	{"FrameOneTooShort", hostileFrame(transport.Frame{make([]byte, 99)})},
	{"FrameOneTooLong", hostileFrame(transport.Frame{make([]byte, 101)})},
	{"LongFrame", hostileFrame(transport.Frame{make([]byte, 1<<20)})},
}

func hostileFrame(f transport.Frame) func(t *testing.T, b Backend) {
	return func(t *testing.T, b Backend) {
		conns := b.New(t).Connections(b.native)
		if conns == 0 {
			t.Skip("the channel has no connections of its own")
		}
		for i := range conns {
			if i == 1 && len(f) == 0 && b.TrustsCompletions && !b.native {
				continue
			}
			near, far := connections(t, b)
			e := openEnd(t, b, channel.RoleListen, near)
			p := defaultAllocator(t, b)
			recv := e.recv(p.alloc(100))
			send := e.send(p.alloc(100))
			written := testwait.Start(func() error { return far.conns[i].WriteFrames(f) })

			require.ErrorIs(t, e.wantBroken(), channel.ErrProtocol, "connection %d", i)
			require.ErrorIs(t, recv.wait(), channel.ErrProtocol, "connection %d", i)
			_ = send.wait()
			e.close(nil)
			_ = testwait.Finish(t, written) // fails if the channel closed the connection before
		}
	}
}
