package device_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// idle is a stream that never has work.
type idle struct{ d device.Device }

func newStream(d device.Device) device.Stream { return &idle{d} }

func (s *idle) Device() device.Device             { return s.d }
func (s *idle) Record() (device.Event, error)     { return nil, nil }
func (s *idle) Wait(device.Event) error           { return nil }
func (s *idle) WaitFor(device.Stream) error       { return nil }
func (s *idle) Synchronize(context.Context) error { return nil }

func TestStreamFromContext(t *testing.T) {
	zero, one := device.Device{Kind: "npu"}, device.Device{Kind: "npu", Index: 1}
	a, b, c := newStream(zero), newStream(one), newStream(zero)

	ctx := t.Context()
	require.Nil(t, device.StreamFrom(ctx, zero))

	outer := device.WithStream(device.WithStream(ctx, a), b)
	inner := device.WithStream(outer, c)
	require.Same(t, c, device.StreamFrom(inner, zero), "the last one counts")
	require.Same(t, b, device.StreamFrom(inner, one), "other devices stay")
	require.Same(t, a, device.StreamFrom(outer, zero), "the outer context is untouched")
	require.Nil(t, device.StreamFrom(inner, device.CPU()))
	require.Equal(t, inner, device.WithStream(inner, nil), "no stream, no change")
}

func TestStreamFromAllocations(t *testing.T) {
	d := device.Device{Kind: "npu", Index: 3}
	ctx := t.Context()
	for i := range 4 {
		ctx = device.WithStream(ctx, newStream(device.Device{Kind: "npu", Index: i}))
	}
	var found device.Stream
	require.Zero(t, testing.AllocsPerRun(100, func() { found = device.StreamFrom(ctx, d) }))
	require.Equal(t, d, found.Device())
}
