package channeltest

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
)

// runOptional tests EndRecv and, if the channel of b implements [channel.Compatible], Discard and
// Fits, in the compatible dialect.
func runOptional(t *testing.T, b Backend) {
	runGroup(t, b, "EndRecv", endRecvCases)
	connect, _ := open(t, b)
	if c, ok := connect.ch.(channel.Compatible); ok {
		runGroup(t, b, "Discard", discardCases)
		src := defaultAllocator(t, b).alloc(1000)
		require.NoError(t, c.Fits(src))
		connect.close(errTest)
		require.NoError(t, c.Fits(src), "after Close")
	}
}

var endRecvCases = []testCase{
	{"EarlierRecvsComplete", "Compatible.EndRecv: EndRecv announces that Recv and Discard will not be called any more, because the peer has announced its last transfer. Earlier calls continue.", func(t *testing.T, b Backend) {
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

	{"UnreceivedTensor", "Compatible.EndRecv: If a tensor arrives after them on the connection on which the channel detects the end of the peer, the channel treats it as that end, and calls Link.Broken with io.EOF.", func(t *testing.T, b Backend) {
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

	{"AfterClose", "Compatible.EndRecv: EndRecv may be called repeatedly, and after Close.", func(t *testing.T, b Backend) {
		connect, _ := open(t, b)
		connect.close(errTest)
		connect.endRecv()
		connect.endRecv()
	}},
}

var discardCases = []testCase{
	{"BetweenOthers", "Compatible.Discard: Discard receives and drops a tensor of n bytes that the application has rejected. It takes the place of Recv and calls done likewise.", func(t *testing.T, b Backend) {
		connect, listen := open(t, b)
		exchange(t, b, connect, listen, 1000)
		p := defaultAllocator(t, b)
		for _, n := range []int{0, 1, 1000, 3 << 20} {
			wantOK(connect.send(p.alloc(n)), listen.discard(n))
			exchange(t, b, connect, listen, 1000)
		}
	}},

	{"AfterClose", "Compatible.Discard: Discard receives and drops a tensor of n bytes that the application has rejected. It takes the place of Recv and calls done likewise.", func(t *testing.T, b Backend) {
		connect, _ := open(t, b)
		require.NoError(t, connect.ch.Close(errTest))
		require.ErrorIs(t, connect.discard(100).wait(), errTest)
	}},
}

// endRecv calls EndRecv of the channel if the channel implements [channel.Compatible], as a pipe
// does, and otherwise does nothing. A channel without EndRecv must pass the same tests.
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
