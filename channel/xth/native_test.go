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
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/internal/bulk"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// openNative returns a new end over conns, in the native dialect, and a channel that receives the
// errors passed to Link.Broken. The end is closed at the end of the test.
func openNative(t testing.TB, conns []transport.Conn) (channel.Channel, <-chan error) {
	t.Helper()
	broken := make(chan error, 2)
	ch, err := xth.New().New(t.Context(), channel.Link{
		Native: true,
		Host:   bulk.New(bulk.Config{}).Lane(1), // never used
		Conns:  conns,
		Peer:   "worker1",
		Broken: func(err error) { broken <- err },
		Logger: slog.New(slog.DiscardHandler),
	}, channel.RoleConnect)
	require.NoError(t, err)
	t.Cleanup(func() { ch.Close(nil) })
	return ch, broken
}

// nativeAlone returns a new end in the native dialect, a channel that receives the errors passed to
// Link.Broken, and the two connections with which the test acts as the peer.
func nativeAlone(t *testing.T) (ch channel.Channel, broken <-chan error, announcements, completions transport.Conn) {
	t.Helper()
	near, far := connections(t)
	ch, broken = openNative(t, near)
	return ch, broken, far[0], far[1]
}

// frame returns a frame that consists of numbers, eight bytes each and little-endian, as native
// ends write it.
func frame(numbers ...uint64) transport.Frame {
	var p []byte
	for _, n := range numbers {
		p = binary.LittleEndian.AppendUint64(p, n)
	}
	return transport.Frame{p}
}

// An announcement consists of the id of the transfer and an address that is not 0. After an Abort,
// an announcement of the same id with the address 0 follows. Nothing is sent for an empty tensor.
func TestNativeAnnouncements(t *testing.T) {
	ch, _, announcements, _ := nativeAlone(t)
	ch.Send(1, device.Bytes(nil), func(error) {})
	done, err := result()
	ch.Send(1<<40, device.Bytes([]byte("secret")), done)
	first := readFrame(t, announcements)
	require.Len(t, first, 16)
	require.Equal(t, uint64(1<<40), binary.LittleEndian.Uint64(first))
	require.NotZero(t, binary.LittleEndian.Uint64(first[8:]))
	ch.Abort(1<<40, io.ErrNoProgress)
	require.Equal(t, io.ErrNoProgress, <-err)
	require.Equal(t, []byte(frame(1<<40, 0)[0]), readFrame(t, announcements))
}

// An announced address that is not that of a description, a completion of a tensor that was not
// copied, and a frame of the wrong size end the channel with channel.ErrProtocol. No byte is
// copied.
func TestNativeHostileFrames(t *testing.T) {
	secret := bytes.Repeat([]byte("secret"), 100)
	own := uint64(uintptr(unsafe.Pointer(&secret[0])))
	for _, c := range []struct {
		name                       string
		announcements, completions transport.Frame
		says                       string
	}{
		{"unmapped address", frame(7, 0x1000), nil, "nothing is described"},
		{"highest address", frame(7, 1<<64-1), nil, "nothing is described"},
		{"address of memory", frame(7, own), nil, "nothing is described"},
		{"short announcement", frame(7), nil, "announcement: a frame of 8 bytes"},
		{"completion of what is on offer", nil, frame(8), "not copied"},
		{"long completion", nil, frame(8, 8), "completion: a frame of 16 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ch, broken, announcements, completions := nativeAlone(t)
			dst := make([]byte, len(secret))
			received, recvErr := result()
			sent, sendErr := result()
			ch.Recv(7, device.Bytes(dst), received)
			ch.Send(8, device.Bytes(secret), sent)
			if c.announcements != nil {
				require.NoError(t, announcements.WriteFrames(c.announcements))
			} else {
				require.NoError(t, completions.WriteFrames(c.completions))
			}
			for _, err := range []error{<-recvErr, <-sendErr, <-broken} {
				require.ErrorIs(t, err, channel.ErrProtocol)
				require.ErrorContains(t, err, c.says)
			}
			require.NoError(t, ch.Close(nil))
			require.Equal(t, make([]byte, len(secret)), dst)
		})
	}
}

// Completions and revocations of unknown transfers, which may have ended before, are ignored.
func TestNativeLateFrames(t *testing.T) {
	ch, broken, announcements, completions := nativeAlone(t)
	require.NoError(t, completions.WriteFrames(frame(1), frame(2)))
	require.NoError(t, announcements.WriteFrames(frame(3, 0)))
	ch.Abort(3, nil)
	done, err := result()
	ch.Send(4, device.Bytes([]byte("secret")), done)
	readFrame(t, announcements)
	require.NoError(t, completions.WriteFrames(frame(4)))
	require.ErrorIs(t, <-err, channel.ErrProtocol, "only now there was something wrong")
	require.ErrorContains(t, <-broken, "not copied")
}

// A description that was announced over one connection cannot be claimed over another one: the Recv
// fails with channel.ErrProtocol, and no byte is copied.
func TestNativeDescriptionsAreForOneConnection(t *testing.T) {
	sender, _, announcements, _ := nativeAlone(t)
	sender.Send(1, device.Bytes([]byte("secret")), func(error) {})
	offer := transport.Frame{readFrame(t, announcements)}

	thief, broken, stolen, _ := nativeAlone(t)
	done, err := result()
	dst := make([]byte, 6)
	thief.Recv(1, device.Bytes(dst), done)
	require.NoError(t, stolen.WriteFrames(offer))
	require.ErrorIs(t, <-err, channel.ErrProtocol)
	require.ErrorIs(t, <-broken, channel.ErrProtocol)
	require.Equal(t, make([]byte, 6), dst)
}

// If the same id is announced twice, even with different descriptions, the channel ends with
// channel.ErrProtocol, and no byte is copied.
func TestNativeAnnouncedTwice(t *testing.T) {
	for name, recv := range map[string]bool{"without a Recv": false, "with a held Recv": true} {
		t.Run(name, func(t *testing.T) {
			kind := delayed.New("npu", 1)
			t.Cleanup(kind.Close)
			late, err := kind.NewStream(kind.Devices()[0])
			require.NoError(t, err)
			defer late.(*delayed.Stream).Hold()()
			near, far := connections(t)
			from, _ := openNative(t, near)
			relay, relayed := connections(t)
			to, broken := openNative(t, []transport.Conn{&renamed{relayed[0], far[0]}, relayed[1]})
			for id := range uint64(2) {
				from.Send(id, device.Bytes([]byte("secret")), func(error) {})
			}
			done, recvErr := result()
			dst := make([]byte, 6)
			if recv {
				to.Recv(7, device.Bytes(dst).WithStream(late), done)
			}
			for range 2 {
				address := binary.LittleEndian.Uint64(readFrame(t, far[0])[8:])
				require.NoError(t, relay[0].WriteFrames(frame(7, address)))
			}
			err = <-broken
			require.ErrorIs(t, err, channel.ErrProtocol)
			require.ErrorContains(t, err, "transfer 7 was described twice")
			if recv {
				require.ErrorIs(t, <-recvErr, channel.ErrProtocol)
			}
			require.NoError(t, to.Close(nil))
			require.Equal(t, make([]byte, 6), dst)
		})
	}
}

func TestNativeUnequalLengths(t *testing.T) {
	near, far := connections(t)
	from, fromBroken := openNative(t, near)
	to, toBroken := openNative(t, far)
	sent, sendErr := result()
	received, recvErr := result()
	from.Send(1, device.Bytes([]byte("secret")), sent)
	to.Recv(1, device.Bytes(make([]byte, 7)), received)
	var length *channel.LengthError
	require.ErrorAs(t, <-recvErr, &length)
	require.Equal(t, channel.LengthError{Want: 7, Got: 6}, *length)
	require.ErrorIs(t, <-toBroken, channel.ErrProtocol)
	require.Error(t, <-sendErr)
	require.ErrorIs(t, <-fromBroken, io.EOF)
}

// A Send or Recv of device memory, or of memory whose stream has failed, fails with that error. The
// other end does not complete until it is aborted. Later tensors arrive, and the channel does not
// end.
func TestNativeMemoryThatCannotBeUsed(t *testing.T) {
	kind := delayed.New("npu", 1)
	t.Cleanup(kind.Close)
	stream, err := kind.NewStream(kind.Devices()[0])
	require.NoError(t, err)
	away, err := kind.Alloc(kind.Devices()[0], 10, stream)
	require.NoError(t, err)
	require.NoError(t, stream.(*delayed.Stream).Launch(func(...[]byte) error { return io.ErrNoProgress }))
	fine := func() device.Buffer { return device.Bytes(make([]byte, 10)) }

	near, far := connections(t)
	from, fromBroken := openNative(t, near)
	to, toBroken := openNative(t, far)
	var id uint64
	move := func(src, dst device.Buffer) (sendErr, recvErr <-chan error) {
		id++
		sent, s := result()
		received, r := result()
		from.Send(id, src, sent)
		to.Recv(id, dst, received)
		return s, r
	}
	for _, c := range []struct {
		bad  device.Buffer
		want error
	}{
		{away, device.ErrMemory},
		{fine().WithStream(stream), io.ErrNoProgress},
	} {
		sendErr, recvErr := move(c.bad, fine())
		require.ErrorIs(t, <-sendErr, c.want)
		to.Abort(id, channel.ErrAborted)
		require.Equal(t, channel.ErrAborted, <-recvErr)

		sendErr, recvErr = move(fine(), c.bad)
		require.ErrorIs(t, <-recvErr, c.want)
		from.Abort(id, channel.ErrAborted)
		require.Equal(t, channel.ErrAborted, <-sendErr)

		sendErr, recvErr = move(fine(), fine())
		require.NoError(t, <-sendErr)
		require.NoError(t, <-recvErr)
	}
	require.Empty(t, fromBroken)
	require.Empty(t, toBroken)
}

// A Recv whose tensor the sender has revoked does not complete until it is aborted, and a later
// tensor arrives in its own Recv.
func TestNativeRevokedDescription(t *testing.T) {
	near, far := connections(t)
	from, _ := openNative(t, near)
	to, _ := openNative(t, far)
	sent, sendErr := result()
	received, recvErr := result()
	from.Send(1, device.Bytes(make([]byte, 10)), sent)
	from.Abort(1, io.ErrNoProgress)
	require.Equal(t, io.ErrNoProgress, <-sendErr)
	to.Recv(1, device.Bytes(make([]byte, 10)), received)
	from.Send(2, device.Bytes(make([]byte, 10)), sent)
	to.Recv(2, device.Bytes(make([]byte, 10)), received)
	require.NoError(t, <-sendErr)
	require.NoError(t, <-recvErr, "that of the second")
	require.Empty(t, recvErr)
	to.Abort(1, channel.ErrAborted)
	require.Equal(t, channel.ErrAborted, <-recvErr)
}
