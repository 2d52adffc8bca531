package bench

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/compress"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestDataDiffersBetweenMessages tests for all kinds of data that difference finds a changed byte,
// and finds that the bytes are those of another message.
func TestDataDiffersBetweenMessages(t *testing.T) {
	for _, data := range AllData() {
		g := contents{data: data}.generator()
		for _, size := range []int{1, 8, 77, 1000} {
			p := make([]byte, size)
			g.fill(p, 5)
			require.Equal(t, -1, g.difference(p, 5), data)
			require.Zero(t, g.difference(p, 6), "%s: another message", data)
			p[size-1] ^= 1
			require.Equal(t, (size-1)&^7, g.difference(p, 5), data)
		}
	}
}

// TestDataCompresses tests that each kind of data can be compressed as far as its documentation
// states, with S2 and with Zstandard.
func TestDataCompresses(t *testing.T) {
	const n = 1 << 20
	stripe := func(data string, codec compress.Codec) float64 {
		p := make([]byte, n)
		contents{data: data}.generator().fill(p, 3)
		packing := compress.New(1).NewCompressor()
		defer packing.Release()
		form, err := packing.Add(codec, [][]byte{p}, func() error { return nil })
		require.NoError(t, err)
		if form == nil {
			return 1
		}
		return float64(len(bytes.Join(form, nil))) / n
	}
	for _, codec := range []compress.Codec{compress.S2, compress.Zstd} {
		require.Less(t, stripe(DataZeros, codec), 0.001)
		require.Equal(t, 1.0, stripe(DataRandom, codec))
		require.Equal(t, 1.0, stripe(DataPattern, codec))
	}
	require.Equal(t, 1.0, stripe(DataWeights, compress.S2))
	require.InDelta(t, 0.93, stripe(DataWeights, compress.Zstd), 0.02)
}

func TestWeightsAreOfANormalDistribution(t *testing.T) {
	const n = 100_000
	p := make([]byte, 4*n)
	contents{data: DataWeights}.generator().fill(p, 1)
	var sum, squares float64
	for i := range n {
		x := float64(math.Float32frombits(binary.LittleEndian.Uint32(p[4*i:])))
		sum += x
		squares += x * x
	}
	require.InDelta(t, 0, sum/n, 0.0005)
	require.InDelta(t, 0.02, math.Sqrt(squares/n), 0.0005)
}

func TestMeasureCompressed(t *testing.T) {
	for _, size := range []int{8, 1001, 200_000} {
		s := small(size, size == 8)
		s.Compression, s.Data = pipe.CompressionS2, DataZeros
		r, err := Go{Child: child(t)}.Measure(t.Context(), s)
		require.NoError(t, err)
		requireSane(t, s, r)
		require.Equal(t, "s2 zeros", r.Compression.String()+" "+r.Data)
		require.Equal(t, size > 8, r.WireShare < 0.2, "%g", r.WireShare)
	}
}
