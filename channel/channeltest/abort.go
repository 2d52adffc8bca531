package channeltest

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/race"
)

// stuck is a size that no connection takes in without a peer that reads.
const stuck = 16 << 20

var abortCases = []testCase{
	{"UnknownAndDoneIdsAreIgnored", func(t *testing.T, b Backend) {
		connect, listen := open(t, b)
		connect.abort(99, errTest)
		exchange(t, b, connect, listen, 100, 100)
		exchange(t, b, listen, connect, 100)
		for _, id := range []uint64{0, 1, 2} {
			connect.abort(id, errTest)
			listen.abort(id, errTest)
		}
		exchange(t, b, connect, listen, 100)
		connect.wantUnbroken()
		listen.wantUnbroken()
	}},

	{"RecvThatNobodySends", func(t *testing.T, b Backend) {
		connect, listen := open(t, b)
		p := usual(t, b)
		dst := p.alloc(1000)
		recv := listen.recv(dst)
		listen.abort(recv.id, errTest)
		require.ErrorIs(t, recv.wait(), errTest)
		p.scribble(dst)

		_ = connect.send(p.holding(random(1000, 1))).wait() // the peer may know or not
		afterwards(t, b, listen, connect)
		wantScribble(t, p, dst)
	}},

	{"SendThatNobodyReceives", func(t *testing.T, b Backend) {
		connect, listen := open(t, b)
		p := usual(t, b)
		data := random(stuck, 1)
		src, dst := p.holding(data), p.alloc(stuck)
		send := connect.send(src)
		connect.abort(send.id, errTest)
		err := send.wait()
		p.scribble(src)
		if listen.recv(dst).wait() == nil {
			p.want(data, dst, "a tensor that went out in spite of being aborted")
		}
		if onHost(b, t) {
			require.ErrorIs(t, err, errTest)
		}
		if err != nil {
			afterwards(t, b, connect, listen)
		}
	}},

	{"OneOfMany", abortOneOfMany},
	{"AnyTime", abortAnyTime},

	{"WithoutCause", func(t *testing.T, b Backend) {
		_, listen := open(t, b)
		recv := listen.recv(usual(t, b).alloc(10))
		listen.abort(recv.id, nil)
		require.ErrorIs(t, recv.wait(), channel.ErrClosed)
	}},
}

// onHost reports whether tensors of a test lie in plain host memory. On a device
// done may come when the work is enqueued, too early for any abort.
func onHost(b Backend, t *testing.T) bool { return usual(t, b).device == device.CPU() }

func wantScribble(t *testing.T, p place, b device.Buffer) {
	t.Helper()
	p.want(scribbles.bytes(b.Len()), b, "memory given back")
}

// afterwards checks what has become of the channel when by has aborted a
// transfer, and other has had its part of it.
func afterwards(t *testing.T, b Backend, by, other *end) {
	t.Helper()
	if b.SkipsAborted {
		exchange(t, b, by, other, 100)
		exchange(t, b, other, by, 100)
		by.wantUnbroken()
		other.wantUnbroken()
		return
	}
	p := usual(t, b)
	require.ErrorIs(t, by.wantBroken(), errTest, "the channel closed itself with the cause")
	require.ErrorIs(t, by.send(p.alloc(10)).wait(), errTest)
	require.ErrorIs(t, by.recv(p.alloc(10)).wait(), errTest)
	require.Error(t, other.wantBroken())
	require.Error(t, other.send(p.alloc(10)).wait())
	require.Error(t, other.recv(p.alloc(10)).wait())
}

// Of three tensors under way the second is aborted. Those on its sides arrive
// in full, or not at all where the channel closed.
func abortOneOfMany(t *testing.T, b Backend) {
	for _, sender := range []bool{true, false} {
		connect, listen := open(t, b)
		p := usual(t, b)
		var sends, recvs []*transfer
		var targets []device.Buffer
		for i := range uint64(3) {
			sends = append(sends, connect.send(p.holding(random(stuck/4, i))))
		}
		for range 3 {
			targets = append(targets, p.alloc(stuck/4))
			recvs = append(recvs, listen.recv(targets[len(targets)-1]))
		}
		if sender {
			connect.abort(1, errTest)
		} else {
			listen.abort(1, errTest)
		}
		for i := range recvs {
			_ = sends[i].wait()
			err := recvs[i].wait()
			if i != 1 && b.SkipsAborted {
				require.NoError(t, err)
			}
			if err == nil {
				p.want(random(stuck/4, uint64(i)), targets[i], "tensor")
			}
		}
	}
}

// An abort from either end, or both, while a tensor moves: each done comes,
// the memory is free when it has, and no wrong byte is taken for a tensor.
func abortAnyTime(t *testing.T, b Backend) {
	const size = 1 << 20
	p := usual(t, b)
	data := random(size, 1)
	src, dst := p.alloc(size), p.alloc(size)
	const rounds = 60
	for round := range rounds {
		if !race.Takes(round, rounds, 4) {
			continue
		}
		connect, listen := open(t, b)
		p.write(src, data)
		send, recv := connect.send(src), listen.recv(dst)
		for range round * round / 8 {
			runtime.Gosched()
		}
		if round%3 != 0 {
			connect.abort(send.id, errTest)
		}
		if round%3 != 1 {
			listen.abort(recv.id, errTest)
		}
		_ = send.wait()
		p.scribble(src)
		if err := recv.wait(); err == nil {
			p.want(data, dst, "tensor")
		}
		p.scribble(dst)
		connect.close(nil)
		listen.close(nil)
		wantScribble(t, p, dst)
	}
}
