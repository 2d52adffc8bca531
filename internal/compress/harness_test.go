package compress

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var bothCodecs = []Codec{S2, Zstd}

// sizes are sizes of parts, around those of blocks and slabs.
var sizes = []int{1, 3, 40, 100, 4096, 65_537, BlockSize - 1, BlockSize, BlockSize + 1, 3*BlockSize + 12_345}

// contents are kinds of data.
var contents = map[string]func(n int) []byte{
	"zeros": func(n int) []byte { return make([]byte, n) },
	"text": func(n int) []byte {
		return []byte(strings.Repeat("the bytes of a tensor, and others; ", n/35+1)[:n])
	},
	"random": random,
	"half":   func(n int) []byte { return append(make([]byte, n/2), random(n-n/2)...) },
	"other half": func(n int) []byte {
		return append(random(n-n/2), make([]byte, n/2)...)
	},
	"every other block": func(n int) []byte {
		p := random(n)
		for at := 0; at < n; at += 2 * BlockSize {
			clear(p[at:min(n, at+BlockSize)])
		}
		return p
	},
	"weights": weights,
	"normals": normals,
}

// normals returns n bytes of float32 values with a normal distribution, like initial weights of a
// network. They are the same in each call.
func normals(n int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	p := make([]byte, 0, n+4)
	for len(p) < n {
		p = binary.LittleEndian.AppendUint32(p, math.Float32bits(float32(r.NormFloat64()*0.02)))
	}
	return p[:n]
}

func random(n int) []byte {
	p := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n)}).Read(p)
	return p
}

// weights returns n bytes of the weights of a trained network, repeated as often as needed.
func weights(n int) []byte {
	file, err := os.ReadFile("../../tensor/safetensors/testdata/digits_split_mlp_final.safetensors")
	if err != nil {
		panic(err)
	}
	return bytes.Repeat(file, n/len(file)+1)[:n]
}

func always() error { return nil }

// cuts returns p as a list of pieces, in several ways by name. The pieces are slices of p.
func cuts(p []byte) map[string][][]byte {
	third := len(p) / 3
	next := third + min(third, 7)
	return map[string][][]byte{
		"one piece":    {p},
		"three pieces": {p[:third], nil, p[third:next], p[next:]},
	}
}

// compressParts compresses the part with the memory segments and returns a copy of the compressed
// form in one piece, or nil if compression does not shorten the part enough.
func compressParts(t testing.TB, c *Coders, codec Codec, segments [][]byte) []byte {
	t.Helper()
	p := c.NewCompressor()
	defer p.Release()
	compressed, err := p.Add(codec, segments, always)
	require.NoError(t, err)
	if compressed == nil {
		return nil
	}
	return bytes.Join(compressed, nil)
}

// encodeForm returns a compressed form, possibly an invalid one, with the lengths in table followed
// by the bytes of blocks.
func encodeForm(table []uint32, blocks ...[]byte) []byte {
	var compressed []byte
	for _, n := range table {
		compressed = binary.LittleEndian.AppendUint32(compressed, n)
	}
	return append(compressed, bytes.Join(blocks, nil)...)
}
