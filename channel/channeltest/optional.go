package channeltest

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// runOptional runs the cases of optional interfaces in the compatible dialect.
func runOptional(t *testing.T, b Backend) {
	runGroup(t, b, "EndRecv", endRecvCases)
	connect, _ := open(t, b)
	if c, ok := connect.ch.(channel.Compatible); ok {
		runGroup(t, b, "Discard", discardCases)
		require.NoError(t, c.Fits(device.Bytes(make([]byte, 1000))))
		connect.close(errTest)
		require.NoError(t, c.Fits(device.Bytes(make([]byte, 1000))), "after Close")
	}
}

var endRecvCases = []testCase{
	{"EarlierRecvsComplete", func(t *testing.T, b Backend) {
		connect, listen := open(t, b)
		p := defaultAllocator(t, b)
		first, second := p.alloc(1000), p.alloc(100_000)
		recvs := []*transfer{listen.recv(first), listen.recv(second)}
		listen.endRecv()
		sends := []*transfer{connect.send(p.allocWith(random(1000, 1))), connect.send(p.allocWith(random(100_000, 2)))}
		wantOK(append(sends, recvs...)...)
		p.want(random(1000, 1), first, "first tensor")
		p.want(random(100_000, 2), second, "second tensor")
		listen.wantUnbroken()
		exchange(t, b, listen, connect, 1000)
	}},

	{"UnreceivedTensor", func(t *testing.T, b Backend) {
		for _, n := range []int{1000, 100_000} {
			connect, listen := open(t, b)
			p := defaultAllocator(t, b)
			exchange(t, b, connect, listen, 1000) // so that the connections are established
			connect.send(p.alloc(n))
			yield()
			listen.endRecv()
			connect.close(errTest)
			require.ErrorIs(t, listen.wantBroken(), io.EOF)
		}
	}},

	{"AfterClose", func(t *testing.T, b Backend) {
		connect, _ := open(t, b)
		connect.close(errTest)
		connect.endRecv()
		connect.endRecv()
	}},
}

var discardCases = []testCase{
	{"BetweenOthers", func(t *testing.T, b Backend) {
		connect, listen := open(t, b)
		exchange(t, b, connect, listen, 1000)
		p := defaultAllocator(t, b)
		for _, n := range []int{0, 1, 1000, 3 << 20} {
			wantOK(connect.send(p.alloc(n)), listen.discard(n))
			exchange(t, b, connect, listen, 1000)
		}
	}},

	{"AfterClose", func(t *testing.T, b Backend) {
		connect, _ := open(t, b)
		require.NoError(t, connect.ch.Close(errTest))
		require.ErrorIs(t, connect.discard(100).wait(), errTest)
	}},
}

// endRecv calls EndRecv if the channel implements it, as a pipe does. Other channels must behave in
// the same way without it.
func (e *end) endRecv() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c, ok := e.ch.(channel.Compatible); ok {
		c.EndRecv()
	}
}

func (e *end) discard(n int) *transfer {
	e.mu.Lock()
	defer e.mu.Unlock()
	tr := e.track("discard", e.recvs)
	e.ch.(channel.Compatible).Discard(e.recvs, n, tr.done)
	e.recvs++
	return tr
}
