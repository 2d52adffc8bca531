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

// TestPayloadFrameOfWrongLength checks that a payload whose frame has another length than the
// descriptor has announced breaks the pipe with ErrProtocol, and writes nothing beyond the user's
// memory, as TensorPipe's release build does.
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

// requirePayloadFails reads the next message at the victim and requires that Read fails on the
// descriptor connection with an error that matches reasons, and that memory beyond that of the
// payload does not change.
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

// TestPayloadMissing checks that the pipe fails with ErrPeerLost if the descriptor connection ends
// before a payload or within it.
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

// TestTensorMissing checks that the pipe fails with ErrPeerLost if the connection of the channel
// ends before a tensor or within it.
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

// TestUnannouncedTensor checks that bytes on a channel that no descriptor has announced do not
// break the pipe, and that Close does not wait for a receive of them after the last descriptor.
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
