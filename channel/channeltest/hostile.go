package channeltest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// hostileCases are frames that no channel expects where a tensor of 100 bytes
// goes each way, written by a peer that is not a channel at all.
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
			p := usual(t, b)
			recv := e.recv(p.alloc(100))
			send := e.send(p.alloc(100))
			written := patience.Start(func() error { return far.conns[i].WriteFrames(f) })

			require.ErrorIs(t, e.wantBroken(), channel.ErrProtocol, "connection %d", i)
			require.ErrorIs(t, recv.wait(), channel.ErrProtocol, "connection %d", i)
			_ = send.wait()
			e.close(nil)
			_ = patience.Finish(t, written) // fails where the channel hung up before the end
		}
	}
}
