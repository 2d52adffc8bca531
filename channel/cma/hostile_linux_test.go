package cma_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Announcements are encoded as TensorPipe encodes them, with the id of this process and the address
// of the tensor. Nothing is sent for an empty tensor.
func TestAnnouncement(t *testing.T) {
	ch, _, far := alone(t, false)
	first, second := []byte("first"), []byte("second")
	ch.Send(0, device.Bytes(nil), func(error) {})
	ch.Send(1, device.Bytes(first), func(error) {})
	ch.Send(2, device.Bytes(second), func(error) {})
	for _, p := range [][]byte{first, second} {
		want := wire.CMADescriptor{PID: uint32(os.Getpid()), Ptr: address(p)}
		require.Equal(t, want.Append(nil), readFrame(t, far[0]))
	}
}

// An announcement with an address that cannot be read, or of a process that does not exist, is not
// valid or is not the peer's, fails the Recv and ends the channel.
func TestHostileAnnouncements(t *testing.T) {
	own := []byte("12345678")
	for _, c := range []struct {
		name   string
		frames [][]byte
		want   error
	}{
		{"unmapped address", [][]byte{announcement(os.Getpid(), 8)}, syscall.EFAULT},
		{"address of the kernel", [][]byte{announcement(os.Getpid(), 1<<64-4096)}, syscall.EFAULT},
		{"no such process", [][]byte{announcement(1<<31-1, address(own))}, syscall.ESRCH},
		{"process 0", [][]byte{announcement(0, address(own))}, channel.ErrProtocol},
		{"negative process", [][]byte{announcement(-1, address(own))}, channel.ErrProtocol},
		{"another process", [][]byte{announcement(os.Getpid(), address(own)), announcement(1, address(own))}, channel.ErrProtocol},
	} {
		t.Run(c.name, func(t *testing.T) {
			ch, broken, far := alone(t, false)
			var last <-chan error
			for i, frame := range c.frames {
				done, err := result()
				ch.Recv(uint64(i), device.Bytes(make([]byte, 8)), done)
				write(t, far[0], frame)
				last = err
			}
			require.ErrorIs(t, <-last, c.want)
			require.ErrorIs(t, <-broken, c.want)
		})
	}
}

// A completion without an announced tensor, or with a body, ends the channel with
// channel.ErrProtocol.
func TestHostileCompletions(t *testing.T) {
	for _, frame := range []transport.Frame{{}, {[]byte("!")}} {
		ch, broken, far := alone(t, false)
		if err := far[1].WriteFrames(frame); err != nil {
			require.ErrorIs(t, err, syscall.EPIPE) // the channel has closed at the header of the frame
		}
		require.ErrorIs(t, <-broken, channel.ErrProtocol)
		require.NoError(t, ch.Close(nil))
	}
}

// Descriptions that violate the protocol end the channel: all transfers fail with
// channel.ErrProtocol.
func TestHostileDescriptions(t *testing.T) {
	own, me := make([]byte, 100), os.Getpid()
	valid := func(id uint64) []byte { return offer(me, id, address(own), 1, address(own), 100) }
	for _, c := range []struct {
		name   string
		frames [][]byte
		says   string
	}{
		{"unknown kind", [][]byte{head(9, 0, 7)}, "a frame of kind 9"},
		{"twice", [][]byte{valid(8), valid(8)}, "described twice"},
		{"two processes", [][]byte{valid(8), offer(1, 9, 1, 1, 1, 1)}, "by process"},
		{"too long", [][]byte{offer(me, 7, 1, 1, address(own), 101)}, "peer sends 101 bytes where 100"},
		{"too short", [][]byte{offer(me, 7, 1, 1, address(own), 99)}, "peer sends 99 bytes where 100"},
		{"copied without a description", [][]byte{head(3, 0, 70)}, "not described"},
	} {
		t.Run(c.name, func(t *testing.T) {
			kind := delayed.New("late", 1)
			t.Cleanup(kind.Close)
			late, err := kind.NewStream(kind.Devices()[0])
			require.NoError(t, err)
			defer late.(*delayed.Stream).Hold()()
			ch, broken, far := alone(t, true)
			received, recvErr := result()
			sent, sendErr := result()
			ch.Recv(7, device.Bytes(make([]byte, 100)), received)
			ch.Send(70, device.Bytes(own).WithStream(late), sent)
			for _, frame := range c.frames {
				write(t, far[0], frame)
			}
			for _, err := range []error{<-broken, <-recvErr, <-sendErr} {
				require.ErrorIs(t, err, channel.ErrProtocol)
				require.ErrorContains(t, err, c.says)
			}
		})
	}
}

// The channel ends if the peer describes more than 131072 pieces of memory for which there is no
// Recv.
func TestTooManyDescriptions(t *testing.T) {
	ch, broken, far := alone(t, true)
	text := offer(os.Getpid(), 0, 8, 1)
	for range 4096 {
		text = binary.LittleEndian.AppendUint64(text, 8)
		text = binary.LittleEndian.AppendUint64(text, 1)
	}
	var err error
	for id := uint64(0); err == nil; id++ {
		binary.LittleEndian.PutUint64(text[8:], id)
		err = far[0].WriteFrames(transport.Frame{text})
	}
	require.ErrorContains(t, <-broken, "more than 131072 pieces")
	require.NoError(t, ch.Close(nil))
}

// If the validity word of a description has another value, or is not mapped, the Recv does not
// complete until it is aborted, and no confirmation is sent for it. The next transfer succeeds.
func TestRevokedDescription(t *testing.T) {
	own, validity := []byte("12345678"), make([]byte, 8)
	binary.NativeEndian.PutUint64(validity, 5)
	me := os.Getpid()
	for name, frame := range map[string][]byte{
		"another word":          offer(me, 7, address(validity), 6, address(own), 8),
		"word unmapped":         offer(me, 7, 8, 5, address(own), 8),
		"memory and word gone":  offer(me, 7, 8, 5, 8, 8),
		"memory gone, and word": offer(me, 7, address(validity), 6, 8, 8),
	} {
		t.Run(name, func(t *testing.T) {
			ch, broken, far := alone(t, true)
			done, err := result()
			ch.Recv(7, device.Bytes(make([]byte, 8)), done)
			write(t, far[0], frame)
			dst := make([]byte, 8)
			next, nextErr := result()
			ch.Recv(8, device.Bytes(dst), next)
			write(t, far[0], offer(me, 8, address(validity), 5, address(own), 8))
			require.NoError(t, <-nextErr)
			require.Equal(t, own, dst)
			require.Equal(t, head(3, 0, 8), readFrame(t, far[0]), "the only one that was copied")
			require.Empty(t, err)
			require.Empty(t, broken)
			ch.Abort(7, io.ErrNoProgress)
			require.Equal(t, io.ErrNoProgress, <-err)
		})
	}
}

// A description of memory that is not mapped fails its Recv with EFAULT. The channel does not end.
func TestDescriptionOfUnmappedMemory(t *testing.T) {
	ch, broken, far := alone(t, true)
	validity := []byte{5, 5, 5, 5, 5, 5, 5, 5}
	validValue := binary.NativeEndian.Uint64(validity)
	for id, size := range []int{8, 1 << 20} {
		done, err := result()
		ch.Recv(uint64(id), device.Bytes(make([]byte, size)), done)
		write(t, far[0], offer(os.Getpid(), uint64(id), address(validity), validValue, 8, uint64(size)))
		var fault *cma.ReadError
		require.ErrorAs(t, <-err, &fault)
		require.ErrorIs(t, fault, syscall.EFAULT)
	}
	require.Empty(t, broken)
}

// A description of a process that does not exist ends the channel, and its Recv fails with
// io.ErrUnexpectedEOF.
func TestDescriptionOfMissingProcess(t *testing.T) {
	ch, broken, far := alone(t, true)
	done, err := result()
	ch.Recv(7, device.Bytes(make([]byte, 8)), done)
	write(t, far[0], offer(1<<31-1, 7, 8, 1, 8, 8))
	require.ErrorIs(t, <-err, io.ErrUnexpectedEOF)
	require.ErrorIs(t, <-broken, syscall.ESRCH)
}

// A tensor in more pieces than an announcement can list is gathered and arrives. If it is larger
// than MaxGather its Send fails with ErrScattered, which in the compatible dialect also ends the
// channel.
func TestPieces(t *testing.T) {
	data := bytes.Repeat([]byte("tensor"), 2000)
	pieces := func() (out [][]byte) {
		for i := range data {
			out = append(out, data[i:i+1])
		}
		return out
	}
	for _, native := range []bool{false, true} {
		from, to, fromBroken, toBroken := pair(t, native)
		dst := make([]byte, len(data))
		sent, sendErr := result()
		received, recvErr := result()
		from.Send(0, device.Host(pieces()...), sent)
		to.Recv(0, device.Bytes(dst), received)
		require.NoError(t, <-sendErr)
		require.NoError(t, <-recvErr)
		require.Equal(t, data, dst)

		huge := append(pieces(), make([]byte, cma.MaxGather))
		from.Send(1, device.Host(huge...), sent)
		require.ErrorIs(t, <-sendErr, cma.ErrScattered)
		if native {
			require.Empty(t, fromBroken)
			continue
		}
		require.ErrorIs(t, <-fromBroken, cma.ErrScattered)
		require.Error(t, <-toBroken)
	}
}

// A Send or Recv of device memory, or of memory whose stream has failed, fails with that error. In
// the compatible dialect the channel ends with it; in the native one the channel continues.
func TestMemoryThatCannotBeUsed(t *testing.T) {
	kind := delayed.New("npu", 1)
	t.Cleanup(kind.Close)
	stream, err := kind.NewStream(kind.Devices()[0])
	require.NoError(t, err)
	away, err := kind.Alloc(kind.Devices()[0], 10, stream)
	require.NoError(t, err)
	fault := errors.New("kernel failed")
	require.NoError(t, stream.(*delayed.Stream).Launch(func(...[]byte) error { return fault }))
	fine := func() device.Buffer { return device.Bytes(make([]byte, 10)) }
	for _, native := range []bool{false, true} {
		for want, bad := range map[error]device.Buffer{device.ErrMemory: away, fault: fine().WithStream(stream)} {
			from, _, broken, _ := pair(t, native)
			sent, sendErr := result()
			from.Send(1, bad, sent)
			require.ErrorIs(t, <-sendErr, want)
			received, recvErr := result()
			from.Recv(2, bad, received)
			require.ErrorIs(t, <-recvErr, want)
			if !native {
				require.ErrorIs(t, <-broken, want)
			}
			require.Empty(t, broken)
		}
	}
}

// An empty buffer needs nothing of its stream: its transfer completes, and the channel goes on, even
// if the stream is closed.
func TestEmptyBufferOfClosedStream(t *testing.T) {
	kind := delayed.New("npu", 1)
	stream, err := kind.NewStream(kind.Devices()[0])
	require.NoError(t, err)
	kind.Close()
	from, _, broken, _ := pair(t, false)
	for _, begin := range []func(uint64, device.Buffer, func(error)){from.Send, from.Recv} {
		done, err := result()
		begin(0, device.Bytes(nil).WithStream(stream), done)
		require.NoError(t, <-err)
	}
	require.Empty(t, broken)
}
