package channeltest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

var closeCases = []testCase{
	{"Idle", "Link.Broken: Broken must be called once, from any goroutine and at any time but not from within Send, Recv or Abort, when the channel can move no more tensors for a reason other than its own Close: the peer has closed or failed, the peer broke the protocol, or an Abort required closing the channel.", func(t *testing.T, b Backend) {
		connect, listen := open(t, b)
		exchange(t, b, connect, listen, 100) // so that the connections are established
		connect.close(errTest)
		connect.wantUnbroken()
		require.Error(t, listen.wantBroken())
	}},

	{"EndsAllTransfers", "Channel.Close: Close ends all transfers with cause, and closes the link. It returns the error of closing the link, after every done has been called and all goroutines of the channel have ended.", func(t *testing.T, b Backend) {
		connect, _ := open(t, b)
		p := defaultAllocator(t, b)
		var sends, recvs []*transfer
		for range 3 {
			sends = append(sends, connect.send(p.alloc(blockingSize)))
			recvs = append(recvs, connect.recv(p.alloc(1000)))
		}
		connect.close(errTest)
		for i := range sends {
			require.True(t, sends[i].isDone(), "Close waits for every done")
			require.True(t, recvs[i].isDone(), "Close waits for every done")
			require.ErrorIs(t, recvs[i].wait(), errTest)
			if err := sends[i].wait(); inHostMemory(b, t) {
				require.ErrorIs(t, err, errTest)
			}
		}
		connect.wantUnbroken()
	}},

	{"TransfersAfterClose", "Channel.Close: Transfers that begin later fail with an error that matches cause.", func(t *testing.T, b Backend) {
		connect, _ := open(t, b)
		require.NoError(t, connect.ch.Close(errTest))
		p := defaultAllocator(t, b)
		for _, n := range []int{0, 100} {
			require.ErrorIs(t, connect.send(p.alloc(n)).wait(), errTest)
			require.ErrorIs(t, connect.recv(p.alloc(n)).wait(), errTest)
		}
		connect.abort(0, errTest)
	}},

	{"WithoutCause", "Channel.Abort: In Abort and Close a nil cause stands for ErrClosed.", func(t *testing.T, b Backend) {
		connect, _ := open(t, b)
		recv := connect.recv(defaultAllocator(t, b).alloc(100))
		connect.close(nil)
		require.ErrorIs(t, recv.wait(), channel.ErrClosed)
	}},

	{"ManyTimes", "Channel.Close: A further Close waits for the same and has no other effect.", func(t *testing.T, b Backend) {
		connect, _ := open(t, b)
		recv := connect.recv(defaultAllocator(t, b).alloc(100))
		var all []<-chan error
		for range 4 {
			all = append(all, testwait.Start(func() error {
				err := connect.ch.Close(errTest)
				if !recv.isDone() {
					connect.t.Error("a Close returned before done was called")
				}
				return err
			}))
		}
		for _, ch := range all {
			require.NoError(t, testwait.Finish(t, ch))
		}
		require.ErrorIs(t, recv.wait(), errTest)
	}},

	{"BothEndsAtOnce", "Channel: Abort and Close may be called concurrently at any time.", func(t *testing.T, b Backend) {
		for range race.Pick(20, 8) {
			connect, listen := open(t, b)
			p := defaultAllocator(t, b)
			connect.send(p.alloc(1 << 20))
			listen.recv(p.alloc(1 << 20))
			one := testwait.Start(func() error { return connect.ch.Close(errTest) })
			two := testwait.Start(func() error { return listen.ch.Close(errTest) })
			require.NoError(t, testwait.Finish(t, one))
			require.NoError(t, testwait.Finish(t, two))
		}
	}},

	{"WhileTransfersBegin", "Channel: Abort and Close may be called concurrently at any time.", closeWhileTransfersBegin},
}

// closeWhileTransfersBegin closes both ends while another goroutine begins transfers. It checks
// that each done is called, and that an error at the end that is closed first matches the cause of
// its Close.
func closeWhileTransfersBegin(t *testing.T, b Backend) {
	for range race.Pick(20, 8) {
		connect, listen := open(t, b)
		p := defaultAllocator(t, b)
		begun := testwait.Start(func() []*transfer {
			var all []*transfer
			for range 50 {
				all = append(all, connect.send(p.alloc(64)), listen.recv(p.alloc(64)))
			}
			return all
		})
		yield()
		require.NoError(t, connect.ch.Close(errTest))
		require.NoError(t, listen.ch.Close(errTest))
		for _, tr := range testwait.Finish(t, begun) {
			if err := tr.wait(); err != nil && tr.end == connect {
				require.ErrorIs(t, err, errTest)
			}
		}
	}
}
