package hostile_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// patched returns a copy of frame in which bytes are replaced by those of the parameter to,
// beginning at the offset in the parameter at.
func patched(frame []byte, at int, to ...byte) []byte {
	p := bytes.Clone(frame)
	copy(p[at:], to)
	return p
}

func encodeMessage(m native.Message) []byte { return m.Append(nil, false) }
func encodeControl(c native.Control) []byte { return c.Append(nil, false) }
func withSum(m native.Message) []byte       { return m.Append(nil, true) }

// ones is eight bytes of 0xff.
var ones = bytes.Repeat([]byte{255}, 8)

// TestNativeMalformedMessages checks that malformed frames on the message stream break the pipe. In
// the header of a frame the length is at offset 0, the kind at 4 and the flags at 5, followed by
// reserved bytes. In the body the remaining time is at 8, the counts at 16, 20 and 24, and the
// entries begin at 32.
func TestNativeMalformedMessages(t *testing.T) {
	inBothNativeRoles(t, malformedMessages)
}

func malformedMessages(t *testing.T, v *victim, open func(testing.TB) *nativeAttack) {
	inline, large := encodeMessage(inlineMessage("four")), encodeMessage(largeMessage(1<<20))
	tensor := encodeMessage(native.Message{Tensors: []native.Tensor{{Length: 4, Inline: true, Data: []byte("four"), Source: device.CPU(), Target: device.CPU()}}})
	summed := withSum(inlineMessage("four"))
	gpu := device.Device{Kind: "cuda"}
	for name, c := range map[string]struct {
		frame   []byte
		reasons []error
	}{
		"unknown kind":               {patched(inline, 4, 2), nil},
		"control frame":              {encodeControl(native.Control{Kind: native.Goodbye}), nil},
		"unknown flag":               {patched(inline, 5, 2), nil},
		"reserved":                   {patched(inline, 6, 1), nil},
		"length beyond all limits":   {patched(inline, 0, 255, 255, 255, 255), []error{pipe.ErrLimit}},
		"length too short":           {patched(inline, 0, 5, 0), nil},
		"length too long":            {append(patched(inline, 0, inline[0]+1), 0), nil},
		"wrong checksum":             {patched(summed, len(summed)-1, summed[len(summed)-1]+1), []error{pipe.ErrChecksum}},
		"endless deadline":           {patched(inline, 8, ones...), nil},
		"metadata beyond the end":    {patched(inline, 16, 255, 255, 255, 255), nil},
		"4 billion payloads":         {patched(inline, 20, 255, 255, 255, 255), []error{pipe.ErrLimit}},
		"65536 payloads, not there":  {patched(inline, 20, 0, 0, 1, 0), nil},
		"4 billion tensors":          {patched(inline, 24, 255, 255, 255, 255), []error{pipe.ErrLimit}},
		"payload beyond the end":     {patched(inline, 32, 5), nil},
		"payload beyond all memory":  {patched(inline, 32, ones...), nil},
		"unknown flag of a payload":  {patched(inline, 44, 3), nil},
		"payload beyond its limit":   {patched(large, 32, 0, 0, 0, 0, 0, 0, 1, 0), []error{pipe.ErrLimit}},
		"tensor beyond its limit":    {patched(large, 48, 0, 0, 0, 0, 0, 0, 1, 0), []error{pipe.ErrLimit}},
		"unknown flag of a tensor":   {patched(tensor, 44, 11), nil},
		"joined without consent":     {encodeMessage(joinedMessage(1 << 20)), nil},
		"joined to nothing":          {patched(encodeMessage(joinedMessage(1<<20)), 44, 6), nil},
		"tensor from nowhere":        {patched(tensor, 45, 0, 6), nil},
		"device kind beyond limits":  {patched(tensor, 45, 255), []error{pipe.ErrLimit}},
		"negative device index":      {patched(tensor, 48, 255, 255, 255, 255), nil},
		"unknown codec of a tensor":  {patched(tensor, 47, 3), nil},
		"unknown codec":              {patched(inline, 45, 3), nil},
		"reserved in a payload":      {patched(inline, 47, 1), nil},
		"reserved in a tensor":       {patched(tensor, 63, 1), nil},
		"compressed without consent": {encodeMessage(compressedMessage(1000, []byte("does not matter"))), nil},
		"tensor for unknown device":  {encodeMessage(native.Message{Tensors: []native.Tensor{{Length: 1 << 20, Source: device.CPU(), Target: gpu}}}), []error{pipe.ErrNoChannel}},
		"tensor from unknown device": {encodeMessage(native.Message{Tensors: []native.Tensor{{Length: 1 << 20, Source: gpu}}}), []error{pipe.ErrNoChannel}},
	} {
		t.Run(name, func(t *testing.T) {
			n := open(t)
			n.exchange()
			n.sendOn(messageStream, c.frame)
			if len(c.reasons) == 0 || c.reasons[0] != pipe.ErrChecksum {
				c.reasons = append(c.reasons, pipe.ErrProtocol)
			}
			n.requireBrokenNative([]string{"message"}, c.reasons...)
			v.requireHealthy(t)
		})
	}
}

// TestNativeMalformedControl checks that malformed frames on the control stream break the pipe. The
// body of a frame begins at offset 8.
func TestNativeMalformedControl(t *testing.T) {
	inBothNativeRoles(t, malformedControl)
}

func malformedControl(t *testing.T, v *victim, open func(testing.TB) *nativeAttack) {
	number := encodeControl(native.Control{Kind: native.Cancel, Number: 7})
	targets := encodeControl(native.Control{Kind: native.Targets, Number: 7, Devices: []device.Device{device.CPU()}})
	ready := encodeControl(native.Control{Kind: native.Ready, Number: 7, Lane: 1})
	abort := encodeControl(native.Control{Kind: native.Abort, Number: 7, Text: "enough"})
	bulk := encodeControl(native.Control{Kind: native.Bulk})
	for name, frame := range map[string][]byte{
		"huge frame of unknown kind":    {1, 16, 0, 0, 99, 0, 0, 0},
		"unknown flag":                  patched(number, 5, 2),
		"reserved":                      patched(number, 7, 1),
		"length too short":              patched(number, 0, 7),
		"length too long":               append(patched(number, 0, 9), 0),
		"length beyond all limits":      patched(number, 0, 255, 255, 255, 255),
		"bulk with a body":              append(patched(bulk, 0, 1), 0),
		"targets without any":           append(patched(targets[:20], 0, 12), 0)[:20],
		"4 billion targets":             patched(targets, 16, 255, 255, 255, 255),
		"target of no kind":             patched(targets, 20, 0),
		"target of a long kind":         patched(targets, 20, 255),
		"target with a negative index":  patched(targets, 24, 255, 255, 255, 255),
		"targets for no message of its": targets,
		"ready with more":               patched(ready, 18, 1),
		"reason that is no text":        patched(abort, 16, 255),
		"reason that is too long":       patched(append(abort, make([]byte, 2000)...), 0, 0, 8),
	} {
		t.Run(name, func(t *testing.T) {
			n := open(t)
			n.exchange()
			if name == "targets without any" {
				frame = patched(frame, 16, 0, 0, 0, 0)
			}
			n.sendOn(controlStream, frame)
			n.requireBrokenNative([]string{"control"}, pipe.ErrProtocol)
			v.requireHealthy(t)
		})
	}
}

// TestNativeIgnoredControl checks that control frames about unknown messages, and frames of unknown
// kinds, have no effect on the pipe.
func TestNativeIgnoredControl(t *testing.T) {
	inBothNativeRoles(t, ignoredControl)
}

func ignoredControl(t *testing.T, v *victim, open func(testing.TB) *nativeAttack) {
	n := open(t)
	for i := range race.Pick[uint64](3000, 500) {
		for _, c := range []native.Control{
			{Kind: native.Ready, Number: i, Lane: uint16(i)}, // for a message that was never sent
			{Kind: native.Cancel, Number: i},
			{Kind: native.HaveRead, Number: i},
			{Kind: native.WantRead, Number: i},
			{Kind: native.Abort, Number: i + 10, Text: "aborted"},
		} {
			n.control(c)
		}
	}
	for _, kind := range []byte{0, 99, 255} {
		n.sendOn(controlStream, slices.Concat([]byte{4, 0, 0, 0, kind, 0, 0, 0}, []byte("skip")))
	}
	n.exchange()
	v.requireHealthy(t)
	n.closeOrderly()
}

// TestNativeBadTargets checks that the pipe breaks if a peer chooses target devices twice for a
// message, the wrong number of them, or devices that no channel reaches.
func TestNativeBadTargets(t *testing.T) {
	inBothNativeRoles(t, badTargets)
}

func badTargets(t *testing.T, v *victim, open func(testing.TB) *nativeAttack) {
	cpu := device.CPU()
	for name, answers := range map[string][][]device.Device{
		"twice":          {{cpu, cpu}, {cpu, cpu}},
		"too few":        {{cpu}},
		"too many":       {{cpu, cpu, cpu}},
		"unknown device": {{cpu, {Kind: "cuda"}}},
		"a high index":   {{cpu, {Kind: "cpu", Index: 1<<31 - 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			n := open(t)
			open := pipe.Tensor{Buffer: device.Bytes(make([]byte, 1<<20))}
			op := n.pipe.WriteAsync(t.Context(), &pipe.Message{Tensors: []pipe.Tensor{open, open}})
			for _, devices := range answers {
				n.control(native.Control{Kind: native.Targets, Devices: devices})
			}
			requireError(t, op.Wait(t.Context()), "control", pipe.ErrProtocol)
			n.requireBrokenNative([]string{"control"}, pipe.ErrProtocol)
			v.requireHealthy(t)
		})
	}
}

// TestNativeCancelAndAbort checks that the pipe stays open if the peer cancels or aborts messages
// at unusual times: before the devices were chosen, repeatedly, or before the message arrives.
func TestNativeCancelAndAbort(t *testing.T) {
	inBothNativeRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *nativeAttack) {
		n := open(t)
		t.Run("cancelled before the devices were chosen", func(t *testing.T) {
			op := n.pipe.WriteAsync(t.Context(), &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(make([]byte, 1<<20))}}})
			n.control(native.Control{Kind: native.Cancel})
			n.control(native.Control{Kind: native.Targets, Devices: []device.Device{device.CPU()}})
			require.NoError(t, op.Wait(t.Context()), "the peer does not want it")
		})
		t.Run("aborted repeatedly while it is read", func(t *testing.T) {
			n.message(largeMessage(1 << 20))
			in, err := n.pipe.Next(t.Context())
			require.NoError(t, err)
			read := make(chan error, 1)
			go func() { read <- in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())) }()
			n.waitControl(native.Ready)
			for range 3 {
				n.control(native.Control{Kind: native.Abort, Text: "nasty\n\x1b[2J"})
			}
			err = <-read
			require.ErrorIs(t, err, pipe.ErrAborted)
			v.requireHealthy(t)
		})
		t.Run("aborted before it arrives", func(t *testing.T) {
			n.control(native.Control{Kind: native.Abort, Number: 1, Text: "first reason"})
			n.control(native.Control{Kind: native.Abort, Number: 1, Text: "second reason"})
			n.message(largeMessage(1 << 20))
			n.message(inlineMessage("the next one"))
			in, err := n.pipe.Next(t.Context())
			if err == nil && in.Descriptor().Payloads[0].Length == 1<<20 { // it arrived before the ABORT
				require.ErrorIs(t, in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())), pipe.ErrAborted)
				in, err = n.pipe.Next(t.Context())
			}
			require.NoError(t, err)
			require.Equal(t, 12, in.Descriptor().Payloads[0].Length)
			require.NoError(t, in.Discard(t.Context()))
		})
		v.requireHealthy(t)
		n.pipe.Abort(pipe.ErrClosed)
	})
}
