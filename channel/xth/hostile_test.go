package xth_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"log/slog"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// open returns a new end over conns, in the compatible dialect, and a channel that receives the
// error passed to Link.Broken. The end is closed at the end of the test.
func open(t *testing.T, conns []transport.Conn) (channel.Channel, <-chan error) {
	t.Helper()
	broken := make(chan error, 1)
	ch, err := xth.New().New(t.Context(), channel.Link{
		Conns:  conns,
		Peer:   "worker1",
		Broken: func(err error) { broken <- err },
		Logger: slog.New(slog.DiscardHandler),
	}, channel.RoleConnect)
	require.NoError(t, err)
	t.Cleanup(func() { ch.Close(nil) })
	return ch, broken
}

// alone returns a new end in the compatible dialect, a channel that receives the error passed to
// Link.Broken, and the two connections with which the test acts as the peer.
func alone(t *testing.T) (ch channel.Channel, broken <-chan error, announcements, completions transport.Conn) {
	t.Helper()
	near, far := connections(t)
	ch, broken = open(t, near)
	return ch, broken, far[0], far[1]
}

func connections(t testing.TB) (near, far []transport.Conn) {
	t.Helper()
	connect := channeltest.Over(mem.New(nil), "")
	for range xth.New().Connections(false) {
		n, f := connect(t)
		near, far = append(near, n), append(far, f)
	}
	return near, far
}

// result returns a done function for one transfer, and a channel that receives the error with which
// it is called.
func result() (done func(error), err <-chan error) {
	ch := make(chan error, 1)
	return func(err error) { ch <- err }, ch
}

func readFrame(t *testing.T, c transport.Conn) []byte {
	t.Helper()
	n, err := c.NextFrame()
	require.NoError(t, err)
	p := make([]byte, n)
	require.NoError(t, c.ReadBody(p))
	return p
}

func announcement(address uint64) []byte {
	return binary.LittleEndian.AppendUint64([]byte{0xb9, 1, 0x83}, address)
}

// Announcements are encoded as TensorPipe encodes them, in eleven bytes with an address, and
// nothing is sent for an empty tensor.
func TestAnnouncement(t *testing.T) {
	ch, _, announcements, _ := alone(t)
	ch.Send(0, device.Bytes(nil), func(error) {})
	ch.Send(1, device.Bytes([]byte("secret")), func(error) {})
	ch.Send(2, device.Bytes([]byte("again")), func(error) {})
	first, second := readFrame(t, announcements), readFrame(t, announcements)
	for _, frame := range [][]byte{first, second} {
		require.Equal(t, announcement(binary.LittleEndian.Uint64(frame[3:])), frame)
	}
	require.NotEqual(t, first, second)
}

// An announcement of an address that is not that of a description ends the channel with
// channel.ErrProtocol, and no byte is copied, even if the address is one of this process's memory.
func TestAddressesAreNotFollowed(t *testing.T) {
	secret := bytes.Repeat([]byte("secret"), 100)
	for name, address := range map[string]uint64{
		"nil":            0,
		"unmapped":       0x1000,
		"highest":        ^uint64(0),
		"of this memory": uint64(uintptr(unsafe.Pointer(&secret[0]))),
	} {
		t.Run(name, func(t *testing.T) {
			ch, broken, announcements, _ := alone(t)
			dst := make([]byte, len(secret))
			done, err := result()
			ch.Recv(0, device.Bytes(dst), done)
			require.NoError(t, announcements.WriteFrames(transport.Frame{announcement(address)}))
			require.ErrorIs(t, <-err, channel.ErrProtocol)
			require.ErrorIs(t, <-broken, channel.ErrProtocol)
			require.NoError(t, ch.Close(nil))
			require.Equal(t, make([]byte, len(secret)), dst)
		})
	}
}

// A description that was announced over one connection cannot be claimed over another one, or over
// the same one in the other direction: the Recv fails with channel.ErrProtocol.
func TestDescriptionsAreForOneConnection(t *testing.T) {
	sender, _, announcements, _ := alone(t)
	sent, sendErr := result()
	sender.Send(0, device.Bytes([]byte("secret")), sent)
	offer := readFrame(t, announcements)

	thief, thiefBroken, stolen, _ := alone(t)
	dst := make([]byte, 6)
	done, err := result()
	thief.Recv(0, device.Bytes(dst), done)
	require.NoError(t, stolen.WriteFrames(transport.Frame{offer}))
	require.ErrorIs(t, <-err, channel.ErrProtocol)
	require.ErrorIs(t, <-thiefBroken, channel.ErrProtocol)

	sender.Recv(0, device.Bytes(dst), done)
	require.NoError(t, announcements.WriteFrames(transport.Frame{offer}))
	require.ErrorIs(t, <-err, channel.ErrProtocol)
	require.ErrorIs(t, <-sendErr, channel.ErrProtocol)
	require.Equal(t, make([]byte, 6), dst)
}

// A completion of a tensor that the peer has not copied fails the Send with channel.ErrProtocol,
// and ends the channel.
func TestForgedCompletion(t *testing.T) {
	ch, broken, announcements, completions := alone(t)
	done, err := result()
	ch.Send(0, device.Bytes([]byte("secret")), done)
	readFrame(t, announcements)
	require.NoError(t, completions.WriteFrames(transport.Frame{}))
	require.ErrorIs(t, <-err, channel.ErrProtocol)
	require.ErrorContains(t, <-broken, "not copied")
}

// A completion that has a body ends the channel with channel.ErrProtocol, even if the tensor was
// copied.
func TestCompletionWithABody(t *testing.T) {
	near, far := connections(t)
	from, broken := open(t, near)
	to, _ := open(t, []transport.Conn{far[0], &talkative{far[1]}})
	to.Recv(0, device.Bytes(make([]byte, 6)), func(error) {})
	done, err := result()
	from.Send(0, device.Bytes([]byte("secret")), done)
	require.ErrorIs(t, <-err, channel.ErrProtocol)
	require.ErrorContains(t, <-broken, "a completion of 1 bytes")
}

// talkative is a connection that appends to frames.
type talkative struct{ transport.Conn }

func (c *talkative) WriteFrames(...transport.Frame) error {
	return c.Conn.WriteFrames(transport.Frame{[]byte("!")})
}

// If an announcement is sent a second time, the channel ends with channel.ErrProtocol.
func TestRepeatedAnnouncement(t *testing.T) {
	near, far := connections(t)
	from, _ := open(t, near)
	relay, relayed := connections(t)
	to, broken := open(t, []transport.Conn{&renamed{relayed[0], far[0]}, far[1]})
	done, err := result()
	from.Send(0, device.Bytes([]byte("secret")), func(error) {})
	offer := readFrame(t, far[0])

	for i := range uint64(2) {
		require.NoError(t, relay[0].WriteFrames(transport.Frame{offer}))
		to.Recv(i, device.Bytes(make([]byte, 6)), done)
		if i == 0 {
			require.NoError(t, <-err)
		}
	}
	require.ErrorIs(t, <-err, channel.ErrProtocol)
	require.ErrorIs(t, <-broken, channel.ErrProtocol)
}

// renamed is a connection with the addresses of another.
type renamed struct {
	transport.Conn
	as transport.Conn
}

func (r *renamed) LocalAddr() string  { return r.as.LocalAddr() }
func (r *renamed) RemoteAddr() string { return r.as.RemoteAddr() }

func TestUnequalLengths(t *testing.T) {
	near, far := connections(t)
	from, fromBroken := open(t, near)
	to, toBroken := open(t, far)
	sent, sendErr := result()
	received, recvErr := result()
	dst := make([]byte, 7)
	from.Send(0, device.Bytes([]byte("secret")), sent)
	to.Recv(0, device.Bytes(dst), received)
	err := <-recvErr
	var length *channel.LengthError
	require.ErrorAs(t, err, &length)
	require.Equal(t, channel.LengthError{Want: 7, Got: 6}, *length)
	require.Equal(t, "channel xth to worker1: peer sends 6 bytes where 7 were announced", err.Error())
	require.Equal(t, err, <-toBroken)
	require.Error(t, <-sendErr)
	require.ErrorIs(t, <-fromBroken, io.EOF)
	require.Equal(t, make([]byte, 7), dst)
}

// A Send or Recv of device memory, or of memory whose stream has failed, fails with that error, and
// at the other end with channel.ErrAborted. Later tensors arrive, and the channel does not end.
func TestMemoryThatCannotBeUsed(t *testing.T) {
	kind := delayed.New("npu", 1)
	t.Cleanup(kind.Close)
	stream, err := kind.NewStream(kind.Devices()[0])
	require.NoError(t, err)
	away, err := kind.Alloc(kind.Devices()[0], 10, stream)
	require.NoError(t, err)
	require.NoError(t, stream.(*delayed.Stream).Launch(func(...[]byte) error { return io.ErrNoProgress }))

	near, far := connections(t)
	from, fromBroken := open(t, near)
	to, toBroken := open(t, far)
	fine := func() device.Buffer { return device.Bytes(make([]byte, 10)) }
	var id uint64
	move := func(src, dst device.Buffer) (sendErr, recvErr error) {
		sent, s := result()
		received, r := result()
		from.Send(id, src, sent)
		to.Recv(id, dst, received)
		id++
		return <-s, <-r
	}
	for _, c := range []struct {
		bad  device.Buffer
		want error
	}{
		{away, device.ErrMemory},
		{fine().WithStream(stream), io.ErrNoProgress},
	} {
		sendErr, recvErr := move(c.bad, fine())
		require.ErrorIs(t, sendErr, c.want)
		require.ErrorIs(t, recvErr, channel.ErrAborted)
		sendErr, recvErr = move(fine(), c.bad)
		require.ErrorIs(t, sendErr, channel.ErrAborted)
		require.ErrorIs(t, recvErr, c.want)
		sendErr, recvErr = move(fine(), fine())
		require.NoError(t, sendErr)
		require.NoError(t, recvErr)
	}
	require.Empty(t, fromBroken)
	require.Empty(t, toBroken)
}

// The same memory can be sent many times concurrently, over several channels, and arrives
// unchanged.
func TestSameMemoryManyTimes(t *testing.T) {
	src := bytes.Repeat([]byte("parameters"), 1000)
	type arrival struct {
		err <-chan error
		dst []byte
	}
	var arrivals []arrival
	for range 5 {
		near, far := connections(t)
		from, _ := open(t, near)
		to, _ := open(t, far)
		for id := range uint64(20) {
			n := len(src) - int(id)
			dst := make([]byte, n)
			done, err := result()
			from.Send(id, device.Bytes(src[:n]), func(error) {})
			to.Recv(id, device.Bytes(dst), done)
			arrivals = append(arrivals, arrival{err, dst})
		}
	}
	for _, a := range arrivals {
		require.NoError(t, <-a.err)
		require.True(t, bytes.Equal(src[:len(a.dst)], a.dst))
	}
}
