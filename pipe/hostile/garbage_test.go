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

// bend lists ways to make a good message bad. The first structure's header,
// b9 and the number of members, is at offset head.
func bend(good []byte, head int) map[string][]byte {
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

func bendPacket() map[string][]byte {
	out := bend(hello(), 2)
	for name, p := range bend(request(1<<40), 2) {
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

func bendDescriptor() map[string][]byte {
	out := bend(goodDescriptor(), 0)
	out["device of negative index"] = bytes.Replace(goodDescriptor(), []byte("cpu\x00"), []byte("cpu\xff"), 1)
	out["device without kind"] = bytes.Replace(goodDescriptor(), []byte("\x03cpu"), []byte("\x00"), 1)
	out["device index of 64 bits"] = bytes.Replace(goodDescriptor(), []byte("cpu\x00"), []byte("cpu\x87\x00\x00\x00\x00\x01\x00\x00\x00"), 1)
	return out
}

func TestGarbageFirstPacket(t *testing.T) {
	garbageFirstPacket(t, newVictim(t))
}

func garbageFirstPacket(t *testing.T, v *victim) {
	for name, bad := range bendPacket() {
		t.Run(name, func(t *testing.T) {
			r := v.visitWith(t, bad)
			v.log.requireRefused(t, r.local(), pipe.ErrProtocol, pipe.ErrHandshake)
			r.ended()
			v.unharmed(t)
		})
	}
	v.quiet(t)
	v.alive(t)
}

func TestGarbageBrochure(t *testing.T) {
	garbageBrochure(t, newVictim(t))
}

func garbageBrochure(t *testing.T, v *victim) {
	for name, bad := range bend(goodBrochure().Append(nil), 0) {
		t.Run(name, func(t *testing.T) {
			r := v.visitWith(t, hello(), bad)
			v.log.requireRefused(t, r.local(), pipe.ErrProtocol, pipe.ErrHandshake)
			r.ended()
			v.unharmed(t)
		})
	}
	v.quiet(t)
	v.alive(t)
}

func TestGarbageAnswer(t *testing.T) {
	garbageAnswer(t, newVictim(t))
}

func garbageAnswer(t *testing.T, v *victim) {
	for name, bad := range bend(goodAnswer("127.0.0.1:1").Append(nil), 0) {
		t.Run(name, func(t *testing.T) {
			l := newTrap(t)
			result := l.lure(v)
			first := l.prey()
			first.frame(bad)
			requireDialFailed(t, l, <-result, pipe.ErrProtocol)
			first.ended()
			v.unharmed(t)
		})
	}
	v.quiet(t)
	v.alive(t)
}

func TestGarbageDescriptor(t *testing.T) {
	inBothRoles(t, garbageDescriptor)
}

func garbageDescriptor(t *testing.T, v *victim, open func(testing.TB) *attack) {
	for name, bad := range bendDescriptor() {
		t.Run(name, func(t *testing.T) {
			a := open(t)
			a.desc.frame(bad)
			requireBroken(t, a.pipe, "descriptor", pipe.ErrProtocol)
			v.unharmed(t)
		})
	}
}

func TestGarbageReply(t *testing.T) {
	inBothRoles(t, garbageReply)
}

func garbageReply(t *testing.T, v *victim, open func(testing.TB) *attack) {
	for name, bad := range bend(goodReply(), 0) {
		t.Run(name, func(t *testing.T) {
			a := open(t)
			op := a.pipe.WriteAsync(t.Context(), message(1))
			a.reply.frame(bad)
			requireBroken(t, a.pipe, "reply", pipe.ErrProtocol)
			requireError(t, op.Wait(t.Context()), "reply", pipe.ErrProtocol)
			v.unharmed(t)
		})
	}
}

// requireDialFailed checks the error of a Dial to a trap.
func requireDialFailed(t testing.TB, l *trap, d dialled, reasons ...error) {
	t.Helper()
	require.Nil(t, d.pipe)
	requireError(t, d.err, "", append(reasons, pipe.ErrHandshake)...)
	require.ErrorContains(t, d.err, l.url())
}
