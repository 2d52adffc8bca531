package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
)

func TestLoadOfChance(t *testing.T) {
	l := newGenerator(&ping{payloads: 3, tensors: 3, size: 5000, check: true, seed: 1})
	seen := map[string]bool{}
	for range 2000 {
		d := l.shape()
		require.LessOrEqual(t, len(d.Payloads), 3)
		require.LessOrEqual(t, len(d.Tensors), 3)
		seen["no payload"] = seen["no payload"] || len(d.Payloads) == 0
		seen["all payloads"] = seen["all payloads"] || len(d.Payloads) == 3
		seen["no tensor"] = seen["no tensor"] || len(d.Tensors) == 0
		for _, one := range d.Tensors {
			require.LessOrEqual(t, one.Length, 5000)
			require.Equal(t, device.CPU(), one.SourceDevice)
			seen["empty"] = seen["empty"] || one.Length == 0
			seen["small"] = seen["small"] || one.Length > 0 && one.Length < 10
			seen["middle"] = seen["middle"] || one.Length > 100 && one.Length < 1000
			seen["full"] = seen["full"] || one.Length == 5000
			seen["named"] = seen["named"] || one.TargetDevice == device.CPU()
			seen["open"] = seen["open"] || one.TargetDevice.IsZero()
			seen["metadata"] = seen["metadata"] || len(one.Metadata) > 0
			seen["no metadata"] = seen["no metadata"] || len(one.Metadata) == 0
		}
	}
	for what, ok := range seen {
		require.True(t, ok, what)
	}
	require.Len(t, seen, 11)
}

func TestLoadOfNoSize(t *testing.T) {
	l := newGenerator(&ping{payloads: 2, tensors: 2, size: 0, check: true, seed: 1})
	for range 100 {
		x, err := l.next()
		require.NoError(t, err)
		require.Zero(t, x.shape.Bytes())
		x.release()
	}
}

func TestLoadNamesAll(t *testing.T) {
	l := newGenerator(&ping{tensors: 9, size: 10, check: true, named: true, seed: 1})
	for range 100 {
		for _, one := range l.shape().Tensors {
			require.Equal(t, device.CPU(), one.TargetDevice)
		}
	}
}

func TestLoadOfOneShape(t *testing.T) {
	x, err := newGenerator(&ping{payloads: 1, tensors: 2, size: 100, seed: 1}).next()
	require.NoError(t, err)
	require.Len(t, x.shape.Payloads, 1)
	require.Len(t, x.shape.Tensors, 2)
	require.Equal(t, 300, x.shape.Bytes())
	require.Empty(t, x.shape.Metadata)
	require.NotEqual(t, make([]byte, 100), x.sent.memory.Payloads[0], "it is random")
	require.NoError(t, compareShape(&x.shape, &x.shape))
	require.Error(t, compareBytes(x.sent, x.back), "nothing has come back")
	x.release()
}

// TestSeedsSurviveJSON checks that a seed that a ping picks is not 0, which stands for a random
// one, and is below 2^53, so that JSON readers that use float64 do not round it.
func TestSeedsSurviveJSON(t *testing.T) {
	for range 10_000 {
		p := ping{check: true}
		p.complete()
		require.NotZero(t, p.seed)
		require.Less(t, p.seed, uint64(1)<<53)
	}
}

// TestLoadIsReproducible checks that two generators with the same seed generate the same first
// message, and one with another seed does not.
func TestLoadIsReproducible(t *testing.T) {
	make := func(seed uint64) *exchange {
		x, err := newGenerator(&ping{payloads: 4, tensors: 4, size: 1000, check: true, seed: seed}).next()
		require.NoError(t, err)
		return x
	}
	a, b := make(9), make(9)
	require.Equal(t, a.shape, b.shape)
	require.NoError(t, compareBytes(a.sent, b.sent))
	require.NotEqual(t, a.shape, make(10).shape)
}
