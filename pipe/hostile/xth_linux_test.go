package hostile_test

import (
	"encoding/binary"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// withXTH adds the channel xth to o, as the best one. The victim then believes that the attacker is
// in its own process, because the channel's descriptor cannot be verified.
func withXTH(o *pipe.Options) {
	o.Channels = append(o.Channels, pipe.ChannelEntry{Name: xth.Name, Priority: 1300, Factory: xth.New()})
}

// dialWithXTH opens a pipe to the victim as a client that uses the channel xth, and returns it as
// an attack with both connections of the channel: one for the sender's announcements, and one for
// the receiver's completions.
func dialWithXTH(t testing.TB, v *victim) (a *attack, announcements, completions *raw) {
	t.Helper()
	b := goodBrochure()
	b.ChannelDeviceDescriptors = map[string]map[device.Device]string{xth.Name: xth.New().DeviceDescriptors()}
	first, answer := v.sendOffer(t, b)
	a = &attack{desc: first, reply: v.dialRawWith(t, request(answer.TransportRegistrationIDs[wire.ReplyConnection]))}
	ids := answer.ChannelRegistrationIDs[xth.Name]
	require.Len(t, ids, 2)
	announcements, completions = v.dialRawWith(t, request(ids[0])), v.dialRawWith(t, request(ids[1]))
	t.Cleanup(func() { announcements.Close(); completions.Close() })
	var err error
	a.pipe, err = v.listener.Accept(t.Context())
	require.NoError(t, err)
	return a, announcements, completions
}

// TestForgedAddresses checks that the victim does not read memory at an address that an attacker
// announces. In the channel xth a tensor is sent as an address of the sender's memory, in the same
// process; a forged one breaks the pipe with ErrProtocol.
func TestForgedAddresses(t *testing.T) {
	v := newVictim(t, withXTH)
	secret := []byte("a secret of this process")
	for name, frame := range map[string][]byte{
		"nil":              wire.XTHDescriptor{}.Append(nil),
		"unmapped":         wire.XTHDescriptor{Ptr: 0x1000}.Append(nil),
		"highest":          wire.XTHDescriptor{Ptr: 1<<64 - 1}.Append(nil),
		"of the heap":      wire.XTHDescriptor{Ptr: uint64(uintptr(unsafe.Pointer(&secret[0])))}.Append(nil),
		"no announcement":  []byte("garbage"),
		"empty":            {},
		"far too long":     make([]byte, 1000),
		"two of them":      append(wire.XTHDescriptor{}.Append(nil), wire.XTHDescriptor{}.Append(nil)...),
		"of another shape": wire.CMADescriptor{PID: 1, Ptr: 1}.Append(nil),
	} {
		t.Run(name, func(t *testing.T) {
			a, announcements, _ := dialWithXTH(t, v)
			in := a.announceTensor()
			announcements.frame(frame)
			requireReadFails(t, in, "channel xth", pipe.ErrProtocol)
			requireBroken(t, a.pipe, "channel xth", pipe.ErrProtocol)
			v.requireHealthy(t)
		})
	}
	v.requireIdle(t)
	v.requireServing(t)
}

// TestForgedCompletions checks that forged or malformed completions, the frames with which a
// receiver of the channel xth releases a tensor, break the pipe with ErrProtocol.
func TestForgedCompletions(t *testing.T) {
	v := newVictim(t, withXTH)
	for name, frame := range map[string][]byte{
		"before any tensor": appendFrame(nil, nil),
		"with a body":       appendFrame(nil, []byte("done")),
		"of 2^62 bytes":     binary.LittleEndian.AppendUint64(nil, 1<<62),
		"of 2^64-1 bytes":   binary.LittleEndian.AppendUint64(nil, 1<<64-1),
		"and another one":   appendFrame(appendFrame(nil, nil), nil),
	} {
		t.Run(name, func(t *testing.T) {
			a, _, completions := dialWithXTH(t, v)
			completions.send(frame)
			requireBroken(t, a.pipe, "channel xth", pipe.ErrProtocol)
			v.requireHealthy(t)
		})
	}
	v.requireIdle(t)
	v.requireServing(t)
}

// TestCompletionWithheld checks that a receiver that never completes a transfer of the channel xth
// blocks only the sender, whose write can be cancelled.
func TestCompletionWithheld(t *testing.T) {
	v := newVictim(t, withXTH)
	a, announcements, _ := dialWithXTH(t, v)
	op := a.pipe.WriteAsync(t.Context(), &pipe.Message{
		Tensors: []pipe.Tensor{{Buffer: device.Bytes([]byte("tensor")), TargetDevice: device.CPU()}},
	})
	announcements.read()
	v.requireHealthy(t)
	require.ErrorIs(t, op.Wait(cancelled(t)), pipe.ErrCancelled)
	v.requireIdle(t)
	v.requireServing(t)
}
