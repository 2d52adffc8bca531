package xth_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// A channel for a device kind passes the conformance suite, with two devices.
func TestParityForKind(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			over := viable(t, tr.mk())
			kind := delayed.New("late", 2)
			t.Cleanup(kind.Close)
			channeltest.Run(t, channeltest.Backend{
				Name:         "late_xth",
				New:          func(*testing.T) channel.Factory { return xth.ForKind("late_xth", kind) },
				Connect:      channeltest.Over(over, tr.addr),
				Kinds:        []device.Kind{kind},
				Hold:         func(s device.Stream) func() { return s.(*delayed.Stream).Hold() },
				SkipsAborted: true,
			})
		})
	}
}

// streamMemory is memory of kind, valid on a stream of its own.
type streamMemory struct {
	kind *delayed.Kind
	buf  device.Buffer
}

// newStreamMemory returns memory on the device with that index, valid on a new stream, on which a copy
// of data into it is enqueued.
func newStreamMemory(t *testing.T, kind *delayed.Kind, index int, data string) streamMemory {
	t.Helper()
	s, err := kind.NewStream(kind.Devices()[index])
	require.NoError(t, err)
	b, err := kind.Alloc(s.Device(), len(data), s)
	require.NoError(t, err)
	m := streamMemory{kind, b}
	m.write(t, data)
	return m
}

func (m streamMemory) write(t *testing.T, data string) {
	t.Helper()
	require.NoError(t, m.kind.Write(m.buf, []byte(data)))
}

func (m streamMemory) hold() (release func()) { return m.buf.Stream().(*delayed.Stream).Hold() }

// read waits for the work on the stream and returns the contents.
func (m streamMemory) read(t *testing.T) string {
	t.Helper()
	p := make([]byte, m.buf.Len())
	require.NoError(t, m.kind.Read(p, m.buf))
	ctx, cancel := context.WithTimeout(t.Context(), testwait.Limit)
	defer cancel()
	require.NoError(t, m.buf.Stream().Synchronize(ctx))
	return string(p)
}

// kindEnds returns the two ends of a new channel for kind over package mem, in the given dialect.
func kindEnds(t *testing.T, kind device.Kind, native bool) (from, to channel.Channel) {
	t.Helper()
	near, far := connections(t)
	open := func(conns []transport.Conn) channel.Channel {
		ch, err := xth.ForKind("late_xth", kind).New(t.Context(), channel.Link{
			Native: native, Conns: conns, Peer: "peer",
			Broken: func(error) {}, Logger: slog.New(slog.DiscardHandler),
		}, channel.RoleConnect)
		require.NoError(t, err)
		t.Cleanup(func() { ch.Close(nil) })
		return ch
	}
	return open(near), open(far)
}

// inBothDialects runs test with a channel for two devices in each dialect.
func inBothDialects(t *testing.T, test func(t *testing.T, kind *delayed.Kind, from, to channel.Channel)) {
	for name, native := range map[string]bool{"compatible": false, "native": true} {
		t.Run(name, func(t *testing.T) {
			kind := delayed.New("late", 2)
			t.Cleanup(kind.Close)
			from, to := kindEnds(t, kind, native)
			test(t, kind, from, to)
		})
	}
}

// moveFirst moves the first tensor of a channel and waits until both ends are done.
func moveFirst(t *testing.T, from, to channel.Channel, src, dst streamMemory) {
	t.Helper()
	sent, sendErr := result()
	received, recvErr := result()
	from.Send(0, src.buf, sent)
	to.Recv(0, dst.buf, received)
	require.NoError(t, <-sendErr)
	require.NoError(t, <-recvErr)
}

// Send and Recv complete while both streams are held. The copy runs after both, and what overwrites
// the source runs after the copy.
func TestNeitherEndWaitsForAStream(t *testing.T) {
	inBothDialects(t, func(t *testing.T, kind *delayed.Kind, from, to channel.Channel) {
		src, dst := newStreamMemory(t, kind, 0, "early"), newStreamMemory(t, kind, 1, ".....")
		releaseSource, releaseTarget := src.hold(), dst.hold()
		src.write(t, "right")
		moveFirst(t, from, to, src, dst)
		src.write(t, "wrong")
		releaseSource()
		releaseTarget()
		require.Equal(t, "right", dst.read(t))
		require.Equal(t, "wrong", src.read(t))
	})
}

// The copy waits for the work that the source's stream holds at the time of Send, not for later work.
func TestCopyDoesNotWaitForLaterWork(t *testing.T) {
	inBothDialects(t, func(t *testing.T, kind *delayed.Kind, from, to channel.Channel) {
		src, dst := newStreamMemory(t, kind, 0, "right"), newStreamMemory(t, kind, 1, ".....")
		sent, sendErr := result()
		received, recvErr := result()
		from.Send(0, src.buf, sent)
		defer src.hold()()
		to.Recv(0, dst.buf, received)
		require.NoError(t, <-sendErr)
		require.NoError(t, <-recvErr)
		require.Equal(t, "right", dst.read(t), "while the source's stream is held")
	})
}

// Once an aborted Send is done, work on its stream that overwrites the memory runs after a copy that
// was enqueued before the Abort.
func TestAbortedSendIsOrderedAfterTheCopy(t *testing.T) {
	inBothDialects(t, func(t *testing.T, kind *delayed.Kind, from, to channel.Channel) {
		src, dst := newStreamMemory(t, kind, 0, "right"), newStreamMemory(t, kind, 0, ".....")
		release := dst.hold()
		sent, sendErr := result()
		received, recvErr := result()
		to.Recv(0, dst.buf, received)
		from.Send(0, src.buf, sent)
		require.NoError(t, <-recvErr)
		from.Abort(0, io.ErrNoProgress)
		if err := <-sendErr; err != nil {
			require.ErrorIs(t, err, io.ErrNoProgress)
		}
		src.write(t, "wrong")
		release()
		require.Equal(t, "right", dst.read(t))
	})
}

// Memory that the channel cannot copy fails the transfer with a typed error, and the next transfer
// succeeds.
func TestForKindRejectsOtherMemory(t *testing.T) {
	host := device.Bytes(make([]byte, 5))
	inBothDialects(t, func(t *testing.T, kind *delayed.Kind, from, to channel.Channel) {
		own := newStreamMemory(t, kind, 0, "right")
		foreign := delayed.New("late", 2)
		defer foreign.Close()
		for i, c := range []struct {
			src, dst device.Buffer
			sendErr  error // nil if the receiver fails
			recvErr  error
		}{
			{src: host, dst: own.buf, sendErr: device.ErrMemory},
			{src: own.buf.WithStream(nil), dst: own.buf, sendErr: device.ErrStream},
			{src: own.buf, dst: host, recvErr: device.ErrMemory},
			{src: own.buf, dst: own.buf.WithStream(nil), recvErr: device.ErrStream},
			{src: newStreamMemory(t, foreign, 0, "right").buf, dst: own.buf, recvErr: device.ErrMemory},
		} {
			id := uint64(2 * i)
			sent, sendErr := result()
			received, recvErr := result()
			from.Send(id, c.src, sent)
			to.Recv(id, c.dst, received)
			if c.sendErr != nil {
				require.ErrorIs(t, <-sendErr, c.sendErr, "case %d", i)
				to.Abort(id, nil)
				require.Error(t, <-recvErr)
			} else {
				require.ErrorIs(t, <-recvErr, c.recvErr, "case %d", i)
				from.Abort(id, nil)
				require.Error(t, <-sendErr)
			}
			next := newStreamMemory(t, kind, 1, ".....")
			from.Send(id+1, own.buf, sent)
			to.Recv(id+1, next.buf, received)
			require.NoError(t, <-sendErr)
			require.NoError(t, <-recvErr)
			require.Equal(t, "right", next.read(t))
		}
	})
}

// The channel is for equal kinds of one process, and is not viable without a device.
func TestForKindFactory(t *testing.T) {
	kind := delayed.New("late", 2)
	t.Cleanup(kind.Close)
	f := xth.ForKind("late_xth", kind)
	require.NoError(t, f.Viable())
	d := f.DeviceDescriptors()
	require.Len(t, d, 2)
	require.Equal(t, xth.New().DeviceDescriptors()[device.CPU()]+"_late", d[kind.Devices()[1]])
	other := delayed.New("other", 1)
	t.Cleanup(other.Close)
	for _, text := range xth.ForKind("late_xth", other).DeviceDescriptors() {
		require.False(t, f.CanCommunicate(d[kind.Devices()[0]], text))
	}
	_, err := f.New(t.Context(), channel.Link{Peer: "peer"}, channel.RoleConnect)
	var named *channel.Error
	require.ErrorAs(t, err, &named)
	require.Equal(t, "late_xth", named.Channel)

	broken := xth.ForKind("late_xth", notViable{kind})
	require.ErrorIs(t, broken.Viable(), transport.ErrNotSupported)
}

// notViable is a kind that cannot be used.
type notViable struct{ device.Kind }

func (notViable) Viable() error { return errors.ErrUnsupported }
