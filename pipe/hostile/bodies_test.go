package hostile_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// payloadSizes are a payload that is read ahead and one that is read into the application's
// memory.
var payloadSizes = []uint64{5, 1 << 20}

// The length in a payload's frame differs from that in the descriptor. TensorPipe's release build
// writes such a payload beyond the end of the user's memory.
func TestPayloadFrameOfWrongLength(t *testing.T) {
	inBothRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		for _, size := range payloadSizes {
			for _, wrong := range []uint64{0, size - 1, size + 1, 1 << 62, 1<<64 - 1} {
				t.Run(fmt.Sprintf("%d for %d", wrong, size), func(t *testing.T) {
					a := open(t)
					a.desc.frame(payloadDescriptor(size))
					a.desc.header(wrong)
					requirePayloadFails(t, a, pipe.ErrProtocol)
					requireBroken(t, a.pipe, "descriptor", pipe.ErrProtocol)
					v.requireHealthy(t)
				})
			}
		}
	})
}

// requirePayloadFails reads a message and checks the error. Memory beyond that of the payload must
// not change.
func requirePayloadFails(t testing.TB, a *attack, reasons ...error) {
	t.Helper()
	in, err := a.pipe.Next(t.Context())
	require.NoError(t, err)
	n := in.Descriptor().Payloads[0].Length
	memory := make([]byte, n+64)
	err = in.Read(t.Context(), pipe.Allocation{Payloads: [][]byte{memory[:n:n]}})
	requireError(t, err, "descriptor", reasons...)
	require.Equal(t, make([]byte, 64), memory[n:])
}

// The connection ends before a payload, or within it.
func TestPayloadMissing(t *testing.T) {
	inBothRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		for _, size := range payloadSizes {
			for name, last := range map[string]func(*raw){
				"before its frame":  func(*raw) {},
				"within its header": func(r *raw) { r.send([]byte{5, 0, 0}) },
				"within its body":   func(r *raw) { r.header(size); r.send([]byte("abc")) },
			} {
				t.Run(fmt.Sprintf("%s of %d", name, size), func(t *testing.T) {
					a := open(t)
					a.desc.frame(payloadDescriptor(size))
					last(a.desc)
					require.NoError(t, a.desc.CloseWrite())
					requirePayloadFails(t, a, pipe.ErrPeerLost)
					requireBroken(t, a.pipe, "descriptor", pipe.ErrPeerLost)
					v.requireHealthy(t)
				})
			}
		}
	})
}

// The same for tensors and the connection of the channel.
func TestTensorMissing(t *testing.T) {
	t.Parallel()
	inBothRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		for name, last := range map[string]func(*raw){
			"before its frame":  func(*raw) {},
			"within its header": func(r *raw) { r.send([]byte{8, 0, 0}) },
			"within its body":   func(r *raw) { r.header(8); r.send([]byte("abc")) },
		} {
			t.Run(name, func(t *testing.T) {
				a := open(t)
				in := a.announceTensor()
				last(a.basic)
				require.NoError(t, a.basic.CloseWrite())
				requireReadFails(t, in, "channel basic", pipe.ErrPeerLost)
				requireBroken(t, a.pipe, "channel basic", pipe.ErrPeerLost)
				v.requireHealthy(t)
			})
		}
	}, shortCloseTimeout)
}

// Bytes on a channel that no descriptor has announced are not read until one does; they neither
// break the pipe nor take memory. After the last descriptor the channel does not wait for them.
func TestUnannouncedTensor(t *testing.T) {
	t.Parallel()
	inBothRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		a := open(t)
		a.basic.frame([]byte("01234567"))
		a.desc.frame(payloadDescriptor(2))
		a.desc.frame([]byte("hi"))
		in, err := a.pipe.Next(t.Context())
		require.NoError(t, err)
		alloc := pipe.NewAllocation(in.Descriptor())
		require.NoError(t, in.Read(t.Context(), alloc))
		require.Equal(t, "hi", string(alloc.Payloads[0]))
		a.closeConns()
		_, err = a.pipe.Next(t.Context())
		requireError(t, err, "descriptor", pipe.ErrPeerClosed)
		require.NoError(t, a.pipe.Close(), "the end of the channel comes after the tensor")
		v.requireHealthy(t)
	})
}
