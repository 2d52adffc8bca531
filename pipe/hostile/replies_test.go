package hostile_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

func replyOf(devices ...device.Device) []byte {
	r := wire.DescriptorReply{TargetDevices: devices}
	return r.Append(nil)
}

// twoOpenTargets returns a message with three tensors, the first and the last of which have no
// target device.
func twoOpenTargets() *pipe.Message {
	tensor := pipe.Tensor{Buffer: device.Bytes([]byte("tensor"))}
	named := tensor
	named.TargetDevice = device.CPU()
	return &pipe.Message{Tensors: []pipe.Tensor{tensor, named, tensor}}
}

func TestBadReplies(t *testing.T) {
	cpu, gpu := device.CPU(), device.Device{Kind: "cuda"}
	replies := map[string][][]byte{
		"no device":                {replyOf()},
		"a device too few":         {replyOf(cpu)},
		"a device too many":        {replyOf(cpu, cpu, cpu)},
		"a device without channel": {replyOf(cpu, gpu)},
		"a device of the victim":   {replyOf(device.Device{Kind: "cpu", Index: 1}, cpu)},
		"twice":                    {replyOf(cpu, cpu), replyOf(cpu, cpu)},
	}
	inBothRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		for name, frames := range replies {
			t.Run(name, func(t *testing.T) {
				a := open(t)
				op := a.pipe.WriteAsync(t.Context(), twoOpenTargets())
				a.desc.read() // the descriptor, which requests a reply
				for _, f := range frames {
					a.reply.frame(f)
				}
				requireBroken(t, a.pipe, "reply", pipe.ErrProtocol)
				if len(frames) == 1 {
					requireError(t, op.Wait(t.Context()), "reply", pipe.ErrProtocol)
				}
				v.requireHealthy(t)
			})
		}
	})
}

// TestUnexpectedReply checks that a reply that arrives before any message, or for a message whose
// tensors all have target devices, breaks the pipe with ErrProtocol.
func TestUnexpectedReply(t *testing.T) {
	inBothRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		t.Run("to nothing", func(t *testing.T) {
			a := open(t)
			a.reply.frame(replyOf(device.CPU()))
			requireBroken(t, a.pipe, "reply", pipe.ErrProtocol)
			v.requireHealthy(t)
		})
		t.Run("to a message with targets", func(t *testing.T) {
			a := open(t)
			m := &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes([]byte("tensor")), TargetDevice: device.CPU()}}}
			require.NoError(t, a.pipe.Write(t.Context(), m))
			require.Equal(t, "tensor", string(a.basic.read()))
			a.reply.frame(replyOf(device.CPU()))
			requireBroken(t, a.pipe, "reply", pipe.ErrProtocol)
			v.requireHealthy(t)
		})
	})
}

// TestReplyWithheld checks that a peer that never replies blocks only its own pipe, and that
// cancelling the write or closing the pipe ends the wait.
func TestReplyWithheld(t *testing.T) {
	t.Parallel()
	inBothRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		t.Run("cancelled", func(t *testing.T) {
			a := open(t)
			op := a.pipe.WriteAsync(t.Context(), twoOpenTargets())
			a.desc.read()
			v.requireHealthy(t)
			require.ErrorIs(t, op.Wait(cancelled(t)), pipe.ErrCancelled)
			_, err := a.pipe.Next(t.Context())
			requireError(t, err, "", pipe.ErrCancelled)
			v.requireHealthy(t)
		})
		t.Run("closed", func(t *testing.T) {
			a := open(t)
			op := a.pipe.WriteAsync(t.Context(), twoOpenTargets())
			a.desc.read()
			requireError(t, a.pipe.Close(), "", pipe.ErrCloseTimeout)
			require.ErrorIs(t, op.Wait(t.Context()), pipe.ErrClosed)
			v.requireHealthy(t)
		})
	}, shortCloseTimeout)
}
