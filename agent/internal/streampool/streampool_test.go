package streampool_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/streampool"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// The first streams are all different. Then the one that was returned first comes first, and a new one if none is free.
func TestStreamsAreSharedLate(t *testing.T) {
	kind := delayed.New("npu", 2)
	defer kind.Close()
	var p streampool.Pool
	get := func(index int) device.Stream {
		s, err := p.Get(kind, kind.Devices()[index])
		require.NoError(t, err)
		require.Equal(t, kind.Devices()[index], s.Device())
		return s
	}
	var all []device.Stream
	known := func(s device.Stream) bool { return slices.Contains(all, s) }
	for range 32 {
		s := get(0)
		require.False(t, known(s))
		all = append(all, s)
		p.Put(s)
	}
	for _, s := range all {
		require.Same(t, s, get(0))
	}
	more := get(0)
	require.False(t, known(more), "none is free")
	require.NotSame(t, get(1), get(1), "streams of another device")
	p.Put(all...)
	p.Put(more) // it is one too many
	for _, s := range all {
		require.Same(t, s, get(0))
	}
	require.NotSame(t, more, get(0))
}

func TestKindWithoutStreams(t *testing.T) {
	var p streampool.Pool
	s, err := p.Get(device.NewCPU(), device.CPU())
	require.NoError(t, err)
	require.Nil(t, s)
	_, err = p.Get(device.NewCPU(), device.Device{Kind: "npu"})
	require.ErrorIs(t, err, device.ErrDevice)
}
