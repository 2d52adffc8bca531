package channeltest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/internal/race"
)

var closeCases = []testCase{
	{"Idle", func(t *testing.T, b Backend) {
		connect, listen := open(t, b)
		exchange(t, b, connect, listen, 100) // or there may be no connection yet
		connect.close(errTest)
		connect.wantUnbroken()
		require.Error(t, listen.wantBroken())
	}},

	{"EndsAllTransfers", func(t *testing.T, b Backend) {
		connect, _ := open(t, b)
		p := usual(t, b)
		var sends, recvs []*transfer
		for range 3 {
			sends = append(sends, connect.send(p.alloc(stuck)))
			recvs = append(recvs, connect.recv(p.alloc(1000)))
		}
		connect.close(errTest)
		for i := range sends {
			require.True(t, sends[i].isDone(), "Close waits for every done")
			require.True(t, recvs[i].isDone(), "Close waits for every done")
			require.ErrorIs(t, recvs[i].wait(), errTest)
			if err := sends[i].wait(); onHost(b, t) {
				require.ErrorIs(t, err, errTest)
			}
		}
		connect.wantUnbroken()
	}},

	{"TransfersAfterwards", func(t *testing.T, b Backend) {
		connect, _ := open(t, b)
		require.NoError(t, connect.ch.Close(errTest))
		p := usual(t, b)
		for _, n := range []int{0, 100} {
			require.ErrorIs(t, connect.send(p.alloc(n)).wait(), errTest)
			require.ErrorIs(t, connect.recv(p.alloc(n)).wait(), errTest)
		}
		connect.abort(0, errTest)
	}},

	{"WithoutCause", func(t *testing.T, b Backend) {
		connect, _ := open(t, b)
		recv := connect.recv(usual(t, b).alloc(100))
		connect.close(nil)
		require.ErrorIs(t, recv.wait(), channel.ErrClosed)
	}},

	{"ManyTimes", func(t *testing.T, b Backend) {
		connect, _ := open(t, b)
		recv := connect.recv(usual(t, b).alloc(100))
		var all []<-chan error
		for range 4 {
			all = append(all, patience.Start(func() error {
				err := connect.ch.Close(errTest)
				if !recv.isDone() {
					connect.t.Error("a Close returned before done was called")
				}
				return err
			}))
		}
		for _, ch := range all {
			require.NoError(t, patience.Finish(t, ch))
		}
		require.ErrorIs(t, recv.wait(), errTest)
	}},

	{"BothEndsAtOnce", func(t *testing.T, b Backend) {
		for range race.Pick(20, 8) {
			connect, listen := open(t, b)
			p := usual(t, b)
			connect.send(p.alloc(1 << 20))
			listen.recv(p.alloc(1 << 20))
			one := patience.Start(func() error { return connect.ch.Close(errTest) })
			two := patience.Start(func() error { return listen.ch.Close(errTest) })
			require.NoError(t, patience.Finish(t, one))
			require.NoError(t, patience.Finish(t, two))
		}
	}},

	{"WhileTransfersBegin", closeWhileTransfersBegin},
}

// Sends and receives race with Close; each gets its done all the same.
func closeWhileTransfersBegin(t *testing.T, b Backend) {
	for range race.Pick(20, 8) {
		connect, listen := open(t, b)
		p := usual(t, b)
		begun := patience.Start(func() []*transfer {
			var all []*transfer
			for range 50 {
				all = append(all, connect.send(p.alloc(64)), listen.recv(p.alloc(64)))
			}
			return all
		})
		linger()
		require.NoError(t, connect.ch.Close(errTest))
		require.NoError(t, listen.ch.Close(errTest))
		for _, tr := range patience.Finish(t, begun) {
			if err := tr.wait(); err != nil && tr.end == connect {
				require.ErrorIs(t, err, errTest)
			}
		}
	}
}
