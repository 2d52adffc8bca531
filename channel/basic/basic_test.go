package basic_test

import (
	"io"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// transports lists the transports on which the channel is tested.
var transports = []struct {
	name string
	mk   func() transport.Transport
	addr string
}{
	{"mem", func() transport.Transport { return mem.New(nil) }, ""},
	{"uv", func() transport.Transport { return uv.New() }, "127.0.0.1:0"},
	{"shm", func() transport.Transport { return shm.New() }, ""},
}

// viable returns tr if tr works on this machine, and otherwise skips the test.
func viable(t testing.TB, tr transport.Transport) transport.Transport {
	t.Helper()
	if err := tr.Viable(); err != nil {
		t.Skip("the transport does not work here: ", err)
	}
	return tr
}

func TestParity(t *testing.T) {
	kind := delayed.New("late", 1)
	t.Cleanup(kind.Close)
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			over := viable(t, tr.mk())
			channeltest.Run(t, channeltest.Backend{
				Name:    basic.Name,
				New:     func(*testing.T) channel.Factory { return basic.New() },
				Connect: channeltest.Over(over, tr.addr),
				Kinds:   []device.Kind{kind},
				Hold:    func(s device.Stream) func() { return s.(*delayed.Stream).Hold() },
			})
		})
	}
}

// open returns a new end over conn, in the compatible dialect, and a channel that receives the
// error passed to Link.Broken. The end is closed at the end of the test.
func open(t testing.TB, conn transport.Conn) (channel.Channel, <-chan error) {
	t.Helper()
	broken := make(chan error, 1)
	ch, err := basic.New().New(t.Context(), channel.Link{
		Conns:  []transport.Conn{conn},
		Peer:   "worker1",
		Broken: func(err error) { broken <- err },
		Logger: slog.New(slog.DiscardHandler),
	}, channel.RoleConnect)
	require.NoError(t, err)
	t.Cleanup(func() { ch.Close(nil) })
	return ch, broken
}

// result returns a done function for one transfer, and a channel that receives the error with which
// it is called.
func result() (done func(error), err <-chan error) {
	ch := make(chan error, 1)
	return func(err error) { ch <- err }, ch
}

func TestDescriptors(t *testing.T) {
	require.Equal(t, map[device.Device]string{device.CPU(): "any"}, basic.New().DeviceDescriptors())
	require.True(t, basic.New().CanCommunicate("any", "any"))
	require.Equal(t, 1, basic.New().Connections(false))
	require.Equal(t, 0, basic.New().Connections(true), "the pipe moves host memory by itself")
}

// Each tensor that is not empty is sent as one frame that consists of its bytes, and an empty one
// as nothing. A frame of the peer arrives in the memory of the next Recv.
func TestWireForm(t *testing.T) {
	near, far := channeltest.Over(mem.New(nil), "")(t)
	ch, _ := open(t, near)
	done, err := result()
	ch.Send(0, device.Host([]byte("he"), nil, []byte("llo")), done)
	ch.Send(1, device.Bytes(nil), func(error) {})
	ch.Send(2, device.Bytes([]byte("world")), func(error) {})
	require.NoError(t, <-err)
	for _, want := range []string{"hello", "world"} {
		n, err := far.NextFrame()
		require.NoError(t, err)
		got := make([]byte, n)
		require.NoError(t, far.ReadBody(got))
		require.Equal(t, want, string(got))
	}
	require.NoError(t, far.WriteFrames(transport.Frame{[]byte("back")}))
	got := make([]byte, 4)
	ch.Recv(0, device.Bytes(got), done)
	require.NoError(t, <-err)
	require.Equal(t, "back", string(got))
}

func TestErrorsSayWhatHappened(t *testing.T) {
	near, far := channeltest.Over(mem.New(nil), "")(t)
	ch, broken := open(t, near)
	require.NoError(t, far.WriteFrames(transport.Frame{[]byte("back")}))
	done, err := result()
	ch.Recv(0, device.Bytes(make([]byte, 5)), done)
	got := <-err
	var length *channel.LengthError
	require.ErrorAs(t, got, &length)
	require.Equal(t, channel.LengthError{Want: 5, Got: 4}, *length)
	require.Equal(t, "channel basic to worker1: peer sends 4 bytes where 5 were announced", got.Error())
	require.Equal(t, got, <-broken)
}

// If the memory of a Send or a Recv cannot be addressed by the host, or its stream has failed or is
// closed, the transfer fails with that error and the channel ends, because the wire form cannot
// skip a tensor.
func TestMemoryThatCannotBeSent(t *testing.T) {
	kind := delayed.New("npu", 1)
	t.Cleanup(kind.Close)
	stream, err := kind.NewStream(kind.Devices()[0])
	require.NoError(t, err)
	far, err := kind.Alloc(kind.Devices()[0], 10, stream)
	require.NoError(t, err)
	require.NoError(t, stream.(*delayed.Stream).Launch(func(...[]byte) error { return io.ErrNoProgress }))
	gone := delayed.New("gone", 1)
	goneStream, err := gone.NewStream(gone.Devices()[0])
	require.NoError(t, err)
	gone.Close()
	for _, c := range []struct {
		name string
		buf  device.Buffer
		want error
	}{
		{"device memory", far, device.ErrMemory},
		{"spoiled stream", device.Bytes(make([]byte, 10)).WithStream(stream), io.ErrNoProgress},
		{"closed stream", device.Bytes(make([]byte, 10)).WithStream(goneStream), delayed.ErrClosed},
	} {
		t.Run(c.name, func(t *testing.T) {
			near, far := channeltest.Over(mem.New(nil), "")(t)
			sender, broken := open(t, near)
			done, err := result()
			sender.Send(0, c.buf, done)
			require.ErrorIs(t, <-err, c.want)
			require.ErrorIs(t, <-broken, c.want)
			_, eof := far.NextFrame()
			require.Equal(t, io.EOF, eof)

			near, far = channeltest.Over(mem.New(nil), "")(t)
			receiver, broken := open(t, near)
			require.NoError(t, far.WriteFrames(transport.Frame{make([]byte, 10)}))
			receiver.Recv(0, c.buf, done)
			require.ErrorIs(t, <-err, c.want)
			require.ErrorIs(t, <-broken, c.want)
		})
	}
}

// An empty buffer needs nothing of its stream: its transfer completes, and the channel goes on, even
// if the stream is closed.
func TestEmptyBufferOfClosedStream(t *testing.T) {
	kind := delayed.New("npu", 1)
	stream, err := kind.NewStream(kind.Devices()[0])
	require.NoError(t, err)
	kind.Close()
	near, _ := channeltest.Over(mem.New(nil), "")(t)
	e, broken := open(t, near)
	for _, begin := range []func(uint64, device.Buffer, func(error)){e.Send, e.Recv} {
		done, err := result()
		begin(0, device.Bytes(nil).WithStream(stream), done)
		require.NoError(t, <-err)
	}
	require.Empty(t, broken)
}

// gated is a connection whose writes block until the test permits them.
type gated struct {
	transport.Conn
	writes chan []int // the sizes of the frames of a write
	open   chan struct{}
}

func (g *gated) WriteFrames(frames ...transport.Frame) error {
	var sizes []int
	for _, f := range frames {
		n := 0
		for _, p := range f {
			n += len(p)
		}
		sizes = append(sizes, n)
	}
	g.writes <- sizes
	<-g.open
	return g.Conn.WriteFrames(frames...)
}

// Small tensors that are queued during a write are sent together in the next write, up to 64
// tensors and 64 KiB; larger tensors are sent alone.
func TestSmallTensorsShareAWrite(t *testing.T) {
	near, far := channeltest.Over(mem.New(nil), "")(t)
	g := &gated{Conn: near, writes: make(chan []int, 100), open: make(chan struct{})}
	ch, _ := open(t, g)
	done, err := result()
	send := func(size int, done func(error)) { ch.Send(0, device.Bytes(make([]byte, size)), done) }
	ignore := func(error) {}

	send(1, ignore)
	require.Equal(t, []int{1}, <-g.writes)
	for range 70 {
		send(10, ignore)
	}
	send(60<<10, ignore)
	send(10<<10, ignore)
	send(1<<20, ignore)
	send(10, done)
	go io.Copy(io.Discard, frameReader{far})
	close(g.open)
	require.NoError(t, <-err)

	ten := func(n int) []int {
		s := make([]int, n)
		for i := range s {
			s[i] = 10
		}
		return s
	}
	for _, want := range [][]int{ten(64), append(ten(6), 60<<10), {10 << 10}, {1 << 20}, {10}} {
		require.Equal(t, want, <-g.writes)
	}
}

// frameReader presents frames as a stream, so that they can be read.
type frameReader struct{ transport.Conn }

func (r frameReader) Read(p []byte) (int, error) {
	n, err := r.NextFrame()
	if err != nil {
		return 0, err
	}
	return len(p), r.ReadBody(make([]byte, n))
}
