package hostile_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/nop"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// malformations returns malformed versions of the encoded message good, by name, and some bytes
// that are no message at all. head is the offset in good of the header of its first structure: the
// byte b9 and the number of members.
func malformations(good []byte, head int) map[string][]byte {
	members := func(n byte) []byte {
		p := bytes.Clone(good)
		p[head+1] = n
		return p
	}
	return map[string][]byte{
		"nothing":              {},
		"no nop value":         bytes.Repeat([]byte{0xff}, len(good)),
		"another protocol":     []byte("GET / HTTP/1.1\r\nHost: pipe\r\n\r\n"),
		"first byte only":      good[:1],
		"half":                 good[:len(good)/2],
		"last byte missing":    good[:len(good)-1],
		"trailing byte":        append(bytes.Clone(good), 0),
		"twice":                append(bytes.Clone(good), good...),
		"a member too few":     members(good[head+1] - 1),
		"a member too many":    members(good[head+1] + 1),
		"2^64-1 members":       append(append(bytes.Clone(good[:head+1]), maxUint...), good[head+2:]...),
		"a map of 2^64-1":      append(bytes.Clone(good[:head+2]), append([]byte{0xbb}, maxUint...)...),
		"a list of 2^64-1":     append(bytes.Clone(good[:head+2]), append([]byte{0xba}, maxUint...)...),
		"a string of 2^64-1":   append(bytes.Clone(good[:head+2]), append([]byte{0xbd}, maxUint...)...),
		"a signed number":      append(bytes.Clone(good[:head+2]), 0x87, 0, 0, 0, 0, 0, 0, 0, 0x80),
		"nested without end":   bytes.Repeat([]byte{0xba, 0x01}, 1000),
		"a prefix of no value": append(bytes.Clone(good[:head+2]), 0xb7),
	}
}

// maxUint is the number 2^64-1.
var maxUint = nop.AppendUint(nil, 1<<64-1)

func malformedPackets() map[string][]byte {
	out := malformations(hello(), 2)
	for name, p := range malformations(request(1<<40), 2) {
		out["request: "+name] = p
	}
	for name, index := range map[string][]byte{
		"alternative 2": {2}, "alternative -2": {0xfe}, "alternative 2^31-1": {0x86, 0xff, 0xff, 0xff, 0x7f},
		"alternative 2^32": {0x87, 0, 0, 0, 0, 1, 0, 0, 0},
	} {
		out[name] = append(append([]byte{0xb8}, index...), hello()[2:]...)
	}
	out["empty variant"] = []byte{0xb8, 0xff, 0xbe}
	out["name without end"] = wire.SpontaneousConnection{ContextName: string(make([]byte, 5000))}.Append(nil)
	return out
}

func goodDescriptor() []byte {
	d := wire.Descriptor{
		Metadata: []byte("m"),
		Payloads: []wire.PayloadDescriptor{{Length: 3, Metadata: []byte("p")}},
		Tensors:  []wire.TensorDescriptor{{Length: 8, SourceDevice: device.CPU(), TargetDevice: device.CPU(), Metadata: []byte("t")}},
	}
	return d.Append(nil)
}

func decodeDescriptor(t testing.TB, p []byte) *wire.Descriptor {
	t.Helper()
	d := new(wire.Descriptor)
	require.NoError(t, wire.DecodeDescriptor(p, wire.Limits{}, d))
	return d
}

func goodReply() []byte {
	r := wire.DescriptorReply{TargetDevices: []device.Device{device.CPU()}}
	return r.Append(nil)
}

func malformedDescriptors() map[string][]byte {
	out := malformations(goodDescriptor(), 0)
	out["device of negative index"] = bytes.Replace(goodDescriptor(), []byte("cpu\x00"), []byte("cpu\xff"), 1)
	out["device without kind"] = bytes.Replace(goodDescriptor(), []byte("\x03cpu"), []byte("\x00"), 1)
	out["device index of 64 bits"] = bytes.Replace(goodDescriptor(), []byte("cpu\x00"), []byte("cpu\x87\x00\x00\x00\x00\x01\x00\x00\x00"), 1)
	return out
}

func TestGarbageFirstPacket(t *testing.T) {
	garbageFirstPacket(t, newVictim(t))
}

func garbageFirstPacket(t *testing.T, v *victim) {
	for name, bad := range malformedPackets() {
		t.Run(name, func(t *testing.T) {
			r := v.dialRawWith(t, bad)
			v.log.requireRejected(t, r.local(), pipe.ErrProtocol, pipe.ErrHandshake)
			r.waitClosed()
			v.requireHealthy(t)
		})
	}
	v.requireIdle(t)
	v.requireServing(t)
}

func TestGarbageBrochure(t *testing.T) {
	garbageBrochure(t, newVictim(t))
}

func garbageBrochure(t *testing.T, v *victim) {
	for name, bad := range malformations(goodBrochure().Append(nil), 0) {
		t.Run(name, func(t *testing.T) {
			r := v.dialRawWith(t, hello(), bad)
			v.log.requireRejected(t, r.local(), pipe.ErrProtocol, pipe.ErrHandshake)
			r.waitClosed()
			v.requireHealthy(t)
		})
	}
	v.requireIdle(t)
	v.requireServing(t)
}

func TestGarbageAnswer(t *testing.T) {
	garbageAnswer(t, newVictim(t))
}

func garbageAnswer(t *testing.T, v *victim) {
	for name, bad := range malformations(goodAnswer("127.0.0.1:1").Append(nil), 0) {
		t.Run(name, func(t *testing.T) {
			l := newRogueListener(t)
			result := l.dialFrom(v)
			first := l.acceptOffer()
			first.frame(bad)
			requireDialFailed(t, l, <-result, pipe.ErrProtocol)
			first.waitClosed()
			v.requireHealthy(t)
		})
	}
	v.requireIdle(t)
	v.requireServing(t)
}

func TestGarbageDescriptor(t *testing.T) {
	inBothRoles(t, garbageDescriptor)
}

func garbageDescriptor(t *testing.T, v *victim, open func(testing.TB) *attack) {
	for name, bad := range malformedDescriptors() {
		t.Run(name, func(t *testing.T) {
			a := open(t)
			a.desc.frame(bad)
			requireBroken(t, a.pipe, "descriptor", pipe.ErrProtocol)
			v.requireHealthy(t)
		})
	}
}

func TestGarbageReply(t *testing.T) {
	inBothRoles(t, garbageReply)
}

func garbageReply(t *testing.T, v *victim, open func(testing.TB) *attack) {
	for name, bad := range malformations(goodReply(), 0) {
		t.Run(name, func(t *testing.T) {
			a := open(t)
			op := a.pipe.WriteAsync(t.Context(), message(1))
			a.reply.frame(bad)
			requireBroken(t, a.pipe, "reply", pipe.ErrProtocol)
			requireError(t, op.Wait(t.Context()), "reply", pipe.ErrProtocol)
			v.requireHealthy(t)
		})
	}
}

// requireDialFailed requires that d is the result of a Dial that has failed, with an error that
// matches ErrHandshake and reasons and names the URL of l.
func requireDialFailed(t testing.TB, l *rogueListener, d dialResult, reasons ...error) {
	t.Helper()
	require.Nil(t, d.pipe)
	requireError(t, d.err, "", append(reasons, pipe.ErrHandshake)...)
	require.ErrorContains(t, d.err, l.url())
}
