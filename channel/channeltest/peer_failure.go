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
	{"PeerClosesIdleChannel", "Link.Broken: The error matches io.EOF if the peer closed between two transfers, and ErrProtocol if it broke the protocol. Transfers that begin later fail with an error that matches the same one.", func(t *testing.T, b Backend) {
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

	{"AnyConnectionEnds", "Link.Broken: The error matches io.EOF if the peer closed between two transfers, and ErrProtocol if it broke the protocol. Transfers that begin later fail with an error that matches the same one.", func(t *testing.T, b Backend) {
		for i := range b.New(t).Connections(b.native) {
			near, far := connections(t, b)
			e := openEnd(t, b, channel.RoleListen, near)
			require.NoError(t, far.conns[i].CloseWrite()) // Close with unread bytes would be a reset
			require.ErrorIs(t, e.wantBroken(), io.EOF, "connection %d", i)
		}
	}},

	{"WaitingTransfers", "Link.Broken: Transfers in progress still complete through done, successfully if the peer had sent all their bytes.", func(t *testing.T, b Backend) {
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

	{"AtEveryCall", "Channel: Each transfer calls done exactly once, whatever its outcome, and never from within Send, Recv or Abort, so that the caller may hold a lock that done takes.", lossAtEveryCall},
}

// lossAtEveryCall moves tensors repeatedly while one end dies at its first call on a connection, at
// its second, and so on, until the tensors need fewer calls. It checks that all transfers end.
// Under the race detector it tests only every third call and the last ones.
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

// eitherKilledAt calls killAt twice, so that each end dies once at its call with the number atCall,
// counted from 0. It reports whether at least one of the ends made that many calls.
func eitherKilledAt(t *testing.T, b Backend, atCall int) bool {
	t.Helper()
	one, other := killAt(t, b, atCall, channel.RoleConnect), killAt(t, b, atCall, channel.RoleListen)
	return one || other
}

// killAt opens a channel, whose end with the role killedRole dies at its call on a connection with
// the number atCall, counted from 0, and runs tryTransfers on it. It closes the channel and reports
// whether that end made the call.
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

// tryTransfers sends three tensors in each direction, waits until each Send and Recv has succeeded
// or failed, and fails the test if a Recv has succeeded with wrong bytes. name describes the
// situation in the message.
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
	{"EmptyFrame", "Link.Broken: The error matches io.EOF if the peer closed between two transfers, and ErrProtocol if it broke the protocol.", hostileFrame(transport.Frame{})},
	{"ShortFrame", "Link.Broken: The error matches io.EOF if the peer closed between two transfers, and ErrProtocol if it broke the protocol.", hostileFrame(transport.Frame{[]byte("\xb9\x01\x83 no")})},
	{"FrameOneTooShort", "Link.Broken: The error matches io.EOF if the peer closed between two transfers, and ErrProtocol if it broke the protocol.", hostileFrame(transport.Frame{make([]byte, 99)})},
	{"FrameOneTooLong", "Link.Broken: The error matches io.EOF if the peer closed between two transfers, and ErrProtocol if it broke the protocol.", hostileFrame(transport.Frame{make([]byte, 101)})},
	{"LongFrame", "Link.Broken: The error matches io.EOF if the peer closed between two transfers, and ErrProtocol if it broke the protocol.", hostileFrame(transport.Frame{make([]byte, 1<<20)})},
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
