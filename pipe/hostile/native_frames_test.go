package hostile_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/race"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// bent changes bytes of a frame. Places count from its start.
func bent(frame []byte, at int, to ...byte) []byte {
	p := bytes.Clone(frame)
	copy(p[at:], to)
	return p
}

func text(m native.Message) []byte    { return m.Append(nil, false) }
func word(c native.Control) []byte    { return c.Append(nil, false) }
func withSum(m native.Message) []byte { return m.Append(nil, true) }

// all is eight bytes of ones.
var all = bytes.Repeat([]byte{255}, 8)

// Frames of the message stream that no peer of ours sends. The header has the
// length at 0, the kind at 4, flags and what is reserved behind; in the body, the
// time left is at 8, the counts at 16, 20 and 24, entries from 32 on.
func TestNativeMalformedMessages(t *testing.T) {
	inBothNativeRoles(t, malformedMessages)
}

func malformedMessages(t *testing.T, v *victim, open func(testing.TB) *intruder) {
	inline, large := text(inlineMessage("four")), text(largeMessage(1<<20))
	tensor := text(native.Message{Tensors: []native.Tensor{{Length: 4, Inline: true, Data: []byte("four"), Source: device.CPU(), Target: device.CPU()}}})
	summed := withSum(inlineMessage("four"))
	gpu := device.Device{Kind: "cuda"}
	for name, c := range map[string]struct {
		frame   []byte
		reasons []error
	}{
		"unknown kind":               {bent(inline, 4, 2), nil},
		"control frame":              {word(native.Control{Kind: native.Goodbye}), nil},
		"unknown flag":               {bent(inline, 5, 2), nil},
		"reserved":                   {bent(inline, 6, 1), nil},
		"length beyond all limits":   {bent(inline, 0, 255, 255, 255, 255), []error{pipe.ErrLimit}},
		"length too short":           {bent(inline, 0, 5, 0), nil},
		"length too long":            {append(bent(inline, 0, inline[0]+1), 0), nil},
		"wrong checksum":             {bent(summed, len(summed)-1, summed[len(summed)-1]+1), []error{pipe.ErrChecksum}},
		"endless deadline":           {bent(inline, 8, all...), nil},
		"metadata beyond the end":    {bent(inline, 16, 255, 255, 255, 255), nil},
		"4 billion payloads":         {bent(inline, 20, 255, 255, 255, 255), []error{pipe.ErrLimit}},
		"65536 payloads, not there":  {bent(inline, 20, 0, 0, 1, 0), nil},
		"4 billion tensors":          {bent(inline, 24, 255, 255, 255, 255), []error{pipe.ErrLimit}},
		"payload beyond the end":     {bent(inline, 32, 5), nil},
		"payload beyond all memory":  {bent(inline, 32, all...), nil},
		"unknown flag of a payload":  {bent(inline, 44, 3), nil},
		"payload beyond its limit":   {bent(large, 32, 0, 0, 0, 0, 0, 0, 1, 0), []error{pipe.ErrLimit}},
		"tensor beyond its limit":    {bent(large, 48, 0, 0, 0, 0, 0, 0, 1, 0), []error{pipe.ErrLimit}},
		"unknown flag of a tensor":   {bent(tensor, 44, 7), nil},
		"tensor from nowhere":        {bent(tensor, 45, 0, 6), nil},
		"device kind beyond limits":  {bent(tensor, 45, 255), []error{pipe.ErrLimit}},
		"negative device index":      {bent(tensor, 48, 255, 255, 255, 255), nil},
		"unknown codec of a tensor":  {bent(tensor, 47, 3), nil},
		"unknown codec":              {bent(inline, 45, 3), nil},
		"reserved in a payload":      {bent(inline, 47, 1), nil},
		"reserved in a tensor":       {bent(tensor, 63, 1), nil},
		"compressed without consent": {text(squeezed(1000, []byte("does not matter"))), nil},
		"tensor for unknown device":  {text(native.Message{Tensors: []native.Tensor{{Length: 1 << 20, Source: device.CPU(), Target: gpu}}}), []error{pipe.ErrNoChannel}},
		"tensor from unknown device": {text(native.Message{Tensors: []native.Tensor{{Length: 1 << 20, Source: gpu}}}), []error{pipe.ErrNoChannel}},
	} {
		t.Run(name, func(t *testing.T) {
			n := open(t)
			n.exchange()
			n.say(messageStream, c.frame)
			if len(c.reasons) == 0 || c.reasons[0] != pipe.ErrChecksum {
				c.reasons = append(c.reasons, pipe.ErrProtocol)
			}
			n.requireDown([]string{"message"}, c.reasons...)
			v.unharmed(t)
		})
	}
}

// Frames of the control stream, likewise. The body begins at 8.
func TestNativeMalformedControl(t *testing.T) {
	inBothNativeRoles(t, malformedControl)
}

func malformedControl(t *testing.T, v *victim, open func(testing.TB) *intruder) {
	number := word(native.Control{Kind: native.Cancel, Number: 7})
	targets := word(native.Control{Kind: native.Targets, Number: 7, Devices: []device.Device{device.CPU()}})
	ready := word(native.Control{Kind: native.Ready, Number: 7, Lane: 1})
	abort := word(native.Control{Kind: native.Abort, Number: 7, Text: "enough"})
	bulk := word(native.Control{Kind: native.Bulk})
	for name, frame := range map[string][]byte{
		"huge frame of unknown kind":    {1, 16, 0, 0, 99, 0, 0, 0},
		"unknown flag":                  bent(number, 5, 2),
		"reserved":                      bent(number, 7, 1),
		"length too short":              bent(number, 0, 7),
		"length too long":               append(bent(number, 0, 9), 0),
		"length beyond all limits":      bent(number, 0, 255, 255, 255, 255),
		"bulk with a body":              append(bent(bulk, 0, 1), 0),
		"targets without any":           append(bent(targets[:20], 0, 12), 0)[:20],
		"4 billion targets":             bent(targets, 16, 255, 255, 255, 255),
		"target of no kind":             bent(targets, 20, 0),
		"target of a long kind":         bent(targets, 20, 255),
		"target with a negative index":  bent(targets, 24, 255, 255, 255, 255),
		"targets for no message of its": targets,
		"ready with more":               bent(ready, 18, 1),
		"reason that is no text":        bent(abort, 16, 255),
		"reason that is too long":       bent(append(abort, make([]byte, 2000)...), 0, 0, 8),
	} {
		t.Run(name, func(t *testing.T) {
			n := open(t)
			n.exchange()
			if name == "targets without any" {
				frame = bent(frame, 16, 0, 0, 0, 0)
			}
			n.say(controlStream, frame)
			n.requireDown([]string{"control"}, pipe.ErrProtocol)
			v.unharmed(t)
		})
	}
}

// What may be said at any time, and means nothing to anybody.
func TestNativeIdleTalk(t *testing.T) {
	inBothNativeRoles(t, idleTalk)
}

func idleTalk(t *testing.T, v *victim, open func(testing.TB) *intruder) {
	n := open(t)
	for i := range race.Pick[uint64](3000, 500) {
		for _, c := range []native.Control{
			{Kind: native.Ready, Number: i, Lane: uint16(i)}, // memory for what was never sent
			{Kind: native.Cancel, Number: i},
			{Kind: native.HaveRead, Number: i},
			{Kind: native.WantRead, Number: i},
			{Kind: native.Abort, Number: i + 10, Text: "it is not coming"},
		} {
			n.control(c)
		}
	}
	for _, kind := range []byte{0, 99, 255} {
		n.say(controlStream, slices.Concat([]byte{4, 0, 0, 0, kind, 0, 0, 0}, []byte("skip")))
	}
	n.exchange()
	v.unharmed(t)
	n.leave()
}

// A sender asks for devices once; a second answer is one too many, and so are too
// few devices, or those that no channel serves.
func TestNativeBadTargets(t *testing.T) {
	inBothNativeRoles(t, badTargets)
}

func badTargets(t *testing.T, v *victim, open func(testing.TB) *intruder) {
	cpu := device.CPU()
	for name, answers := range map[string][][]device.Device{
		"twice":          {{cpu, cpu}, {cpu, cpu}},
		"too few":        {{cpu}},
		"too many":       {{cpu, cpu, cpu}},
		"unknown device": {{cpu, {Kind: "cuda"}}},
		"a far one":      {{cpu, {Kind: "cpu", Index: 1<<31 - 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			n := open(t)
			open := pipe.Tensor{Buffer: device.Bytes(make([]byte, 1<<20))}
			op := n.pipe.WriteAsync(t.Context(), &pipe.Message{Tensors: []pipe.Tensor{open, open}})
			for _, devices := range answers {
				n.control(native.Control{Kind: native.Targets, Devices: devices})
			}
			requireError(t, op.Wait(t.Context()), "control", pipe.ErrProtocol)
			n.requireDown([]string{"control"}, pipe.ErrProtocol)
			v.unharmed(t)
		})
	}
}

// The peer wants a message no more, or gives one up, at odd times.
func TestNativeGivingUpAtOddTimes(t *testing.T) {
	inBothNativeRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *intruder) {
		n := open(t)
		t.Run("cancelled before the devices were chosen", func(t *testing.T) {
			op := n.pipe.WriteAsync(t.Context(), &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(make([]byte, 1<<20))}}})
			n.control(native.Control{Kind: native.Cancel})
			n.control(native.Control{Kind: native.Targets, Devices: []device.Device{device.CPU()}})
			require.NoError(t, op.Wait(t.Context()), "nobody wanted it")
		})
		t.Run("given up while it is read, again and again", func(t *testing.T) {
			n.message(largeMessage(1 << 20))
			in, err := n.pipe.Next(t.Context())
			require.NoError(t, err)
			read := make(chan error, 1)
			go func() { read <- in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())) }()
			n.hears(native.Ready)
			for range 3 {
				n.control(native.Control{Kind: native.Abort, Text: "nasty\n\x1b[2J"})
			}
			err = <-read
			require.ErrorIs(t, err, pipe.ErrAborted)
			v.unharmed(t)
		})
		t.Run("given up before it comes", func(t *testing.T) {
			n.control(native.Control{Kind: native.Abort, Number: 1, Text: "changed my mind"})
			n.control(native.Control{Kind: native.Abort, Number: 1, Text: "once more"})
			n.message(largeMessage(1 << 20))
			n.message(inlineMessage("the next one"))
			in, err := n.pipe.Next(t.Context())
			if err == nil && in.Descriptor().Payloads[0].Length == 1<<20 { // it was faster
				require.ErrorIs(t, in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())), pipe.ErrAborted)
				in, err = n.pipe.Next(t.Context())
			}
			require.NoError(t, err)
			require.Equal(t, 12, in.Descriptor().Payloads[0].Length)
			require.NoError(t, in.Discard(t.Context()))
		})
		v.unharmed(t)
		n.pipe.Abort(pipe.ErrClosed)
	})
}
