package channeltest

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
)

// blockingSize is more bytes than a connection buffers while its peer does not read.
const blockingSize = 16 << 20

var abortCases = []testCase{
	{"UnknownAndDoneIdsAreIgnored", "Channel.Abort: An id that is unknown or completed is ignored.", func(t *testing.T, b Backend) {
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

	{"RecvWithoutSend", "Channel.Abort: done is called with cause as soon as the memory is not in use any more, without waiting for the peer.", func(t *testing.T, b Backend) {
		connect, listen := open(t, b)
		p := defaultAllocator(t, b)
		dst := p.alloc(1000)
		recv := listen.recv(dst)
		listen.abort(recv.id, errTest)
		require.ErrorIs(t, recv.wait(), errTest)
		p.poison(dst)

		_ = connect.send(p.allocWith(random(1000, 1))).wait() // fails if the peer has reported the abort
		checkAfterAbort(t, b, listen, connect)
		wantPoison(t, p, dst)
	}},

	{"SendWithoutRecv", "Channel.Abort: done is called with cause as soon as the memory is not in use any more, without waiting for the peer.", func(t *testing.T, b Backend) {
		connect, listen := open(t, b)
		p := defaultAllocator(t, b)
		data := random(blockingSize, 1)
		src, dst := p.allocWith(data), p.alloc(blockingSize)
		send := connect.send(src)
		connect.abort(send.id, errTest)
		err := send.wait()
		p.poison(src)
		if listen.recv(dst).wait() == nil {
			p.want(data, dst, "a tensor that was sent before it was aborted")
		}
		if inHostMemory(b, t) {
			require.ErrorIs(t, err, errTest)
		}
		if err != nil {
			checkAfterAbort(t, b, connect, listen)
		}
	}},

	{"OneOfMany", "Channel.Abort: In the native dialect all other transfers continue.", abortOneOfMany},
	{"AnyTime", "Channel: Each transfer calls done exactly once, whatever its outcome, and never from within Send, Recv or Abort, so that the caller may hold a lock that done takes.", abortAnyTime},

	{"WithoutCause", "Channel.Abort: In Abort and Close a nil cause stands for ErrClosed.", func(t *testing.T, b Backend) {
		_, listen := open(t, b)
		recv := listen.recv(defaultAllocator(t, b).alloc(10))
		listen.abort(recv.id, nil)
		require.ErrorIs(t, recv.wait(), channel.ErrClosed)
	}},
}

// inHostMemory reports whether the tests use plain host memory, because the channel serves cpu:0.
// On other devices done may be called when the work is enqueued, which may be before an abort.
func inHostMemory(b Backend, t *testing.T) bool { return defaultAllocator(t, b).device == device.CPU() }

func wantPoison(t *testing.T, p allocator, b device.Buffer) {
	t.Helper()
	p.want(poisonBytes.bytes(b.Len()), b, "memory after done")
}

// checkAfterAbort checks the channel after the end by has aborted a transfer with the cause errTest
// and the transfer has ended at other. If b.SkipsAborted is true, both ends must still move
// tensors. Otherwise both must have reported that they are broken, and further transfers must fail.
func checkAfterAbort(t *testing.T, b Backend, by, other *end) {
	t.Helper()
	if b.SkipsAborted {
		exchange(t, b, by, other, 100)
		exchange(t, b, other, by, 100)
		by.wantUnbroken()
		other.wantUnbroken()
		return
	}
	p := defaultAllocator(t, b)
	require.ErrorIs(t, by.wantBroken(), errTest, "the channel closes with the cause")
	require.ErrorIs(t, by.send(p.alloc(10)).wait(), errTest)
	require.ErrorIs(t, by.recv(p.alloc(10)).wait(), errTest)
	require.Error(t, other.wantBroken())
	require.Error(t, other.send(p.alloc(10)).wait())
	require.Error(t, other.recv(p.alloc(10)).wait())
}

// abortOneOfMany aborts the second of three transfers in progress, once at the sender and once at
// the receiver. It checks that a tensor whose Recv succeeds has the right bytes, and that the other
// two Recvs succeed if b.SkipsAborted is true.
func abortOneOfMany(t *testing.T, b Backend) {
	for _, sender := range []bool{true, false} {
		connect, listen := open(t, b)
		p := defaultAllocator(t, b)
		var sends, recvs []*transfer
		var targets []device.Buffer
		for i := range uint64(3) {
			sends = append(sends, connect.send(p.allocWith(random(blockingSize/4, i))))
		}
		for range 3 {
			targets = append(targets, p.alloc(blockingSize/4))
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
				p.want(random(blockingSize/4, uint64(i)), targets[i], "tensor")
			}
		}
	}
}

// abortAnyTime aborts a transfer in progress, at one end or at both and after different delays. It
// checks that each done is called, that a Recv that succeeds has received the right bytes, and that
// the receiver's memory does not change after its done.
func abortAnyTime(t *testing.T, b Backend) {
	const size = 1 << 20
	p := defaultAllocator(t, b)
	data := random(size, 1)
	src, dst := p.alloc(size), p.alloc(size)
	const rounds = 60
	for round := range rounds {
		if !race.Includes(round, rounds, 4) || testing.Short() && round%3 != round/3%3 {
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
		p.poison(src)
		if err := recv.wait(); err == nil {
			p.want(data, dst, "tensor")
		}
		p.poison(dst)
		connect.close(nil)
		listen.close(nil)
		wantPoison(t, p, dst)
	}
}
