package compress

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// TestRoundTrip checks that decompression, both into other memory and in place, restores the part
// that was compressed, for any pieces of memory at both ends. The compressed form does not depend
// on the pieces and is shorter than the part.
func TestRoundTrip(t *testing.T) {
	c := New(2)
	for name, content := range contents {
		for _, codec := range bothCodecs {
			t.Run(fmt.Sprint(name, " ", codec), func(t *testing.T) {
				for _, n := range sizes {
					data := content(n)
					compressed := compressParts(t, c, codec, [][]byte{data})
					require.True(t, bytes.Equal(compressed, compressParts(t, c, codec, cuts(data)["three pieces"])))
					if compressed != nil {
						require.Less(t, len(compressed), n)
						requireUnpacked(t, c, codec, data, compressed)
					}
				}
			})
		}
	}
}

func requireUnpacked(t *testing.T, c *Coders, codec Codec, data, compressed []byte) {
	t.Helper()
	memory := make([]byte, len(data)+1) // the last byte does not belong to the part
	for cut, dst := range cuts(memory[:len(data):len(data)]) {
		clear(memory)
		require.NoError(t, c.Decompress(codec, dst, bytes.Clone(compressed), always), cut)
		requireSame(t, data, memory, cut)
		clear(memory)
		copy(memory[len(data)-len(compressed):], compressed)
		require.NoError(t, c.DecompressInPlace(codec, dst, len(compressed), always), cut)
		requireSame(t, data, memory, cut)
	}
}

func requireSame(t *testing.T, data, memory []byte, cut string) {
	t.Helper()
	require.True(t, bytes.Equal(data, memory[:len(data)]), cut)
	require.Zero(t, memory[len(data)], "nothing is written behind the part")
}

// TestGain checks that Add returns nil for random and very short parts. Zeros shrink by more than
// 99 percent, and a part of which every other block is random by half. Weights of a network shrink
// with Zstd and not with S2.
func TestGain(t *testing.T) {
	c := New(1)
	const n = 4 * BlockSize
	for _, codec := range bothCodecs {
		require.Nil(t, compressParts(t, c, codec, [][]byte{random(n)}), "nothing can be gained")
		require.Nil(t, compressParts(t, c, codec, [][]byte{{1, 2, 3}}))
		require.Less(t, len(compressParts(t, c, codec, [][]byte{make([]byte, n)})), n/100)
		half := len(compressParts(t, c, codec, [][]byte{contents["every other block"](n)}))
		require.Greater(t, half, n/2)
		require.Less(t, half, n/2+n/100)
	}
	for _, content := range []func(int) []byte{weights, normals} {
		require.NotNil(t, compressParts(t, c, Zstd, [][]byte{content(30_000)}), "weights gain")
		require.Nil(t, compressParts(t, c, S2, [][]byte{content(30_000)}), "but not by repeating themselves")
	}
}

// TestIncompressibleBlocksStayWhereTheyAre checks that blocks that compression does not shorten are
// pieces of the part's own memory in the result of Add. Parts that compression does not shorten
// take no memory of the Compressor.
func TestIncompressibleBlocksStayWhereTheyAre(t *testing.T) {
	c := New(1)
	data := random(4 * BlockSize)
	clear(data[:BlockSize])
	p := c.NewCompressor()
	defer p.Release()
	compressed, err := p.Add(S2, [][]byte{data}, always)
	require.NoError(t, err)
	require.Len(t, compressed, 5, "lengths, a block of zeros, three others")
	require.Same(t, &data[BlockSize], &compressed[2][0])
	require.Equal(t, slabSize, p.Bytes())

	for range 100 {
		_, err := p.Add(Zstd, [][]byte{data[BlockSize:]}, always)
		require.NoError(t, err)
	}
	require.Equal(t, slabSize, p.Bytes(), "what gained nothing takes nothing")
}

// TestSmallPartsShareMemory checks that many small parts of one Compressor share slabs: its memory
// is at most one slab larger than the compressed bytes.
func TestSmallPartsShareMemory(t *testing.T) {
	c := New(1)
	p := c.NewCompressor()
	defer p.Release()
	part := contents["text"](4096)
	total := 0
	var forms [][]byte
	for range 2000 {
		compressed, err := p.Add(S2, [][]byte{part}, always)
		require.NoError(t, err)
		require.NotNil(t, compressed)
		forms = append(forms, bytes.Join(compressed, nil))
		total += len(forms[0])
	}
	require.LessOrEqual(t, p.Bytes(), total+slabSize)
	for _, compressed := range forms {
		requireUnpacked(t, c, S2, part, compressed)
	}
}

var errEnough = errors.New("enough")

// cancelAfter returns a check function for Add and Decompress that returns nil for the first n
// calls and errEnough for further ones.
func cancelAfter(n int) func() error {
	return func() error {
		if n--; n < 0 {
			return errEnough
		}
		return nil
	}
}

func TestCheckBetweenBlocks(t *testing.T) {
	c := New(1)
	data := contents["text"](4 * BlockSize)
	for _, codec := range bothCodecs {
		compressed := compressParts(t, c, codec, [][]byte{data})
		for k := range 4 {
			p := c.NewCompressor()
			_, err := p.Add(codec, [][]byte{data}, cancelAfter(k))
			require.ErrorIs(t, err, errEnough)
			require.Zero(t, p.Bytes())
			p.Release()
			require.ErrorIs(t, c.Decompress(codec, [][]byte{make([]byte, len(data))}, compressed, cancelAfter(k)), errEnough)
		}
		requireUnpacked(t, c, codec, data, compressed)
	}
}

// TestFewCodersServeMany checks that if more goroutines compress and decompress than there are
// coders, all complete without an error, and all coders are free at the end.
func TestFewCodersServeMany(t *testing.T) {
	c := New(2)
	data := weights(3 * BlockSize)
	done := testwait.Start(func() error {
		errs := make(chan error)
		for i := range 8 {
			go func() { errs <- there(c, bothCodecs[i%2], data) }()
		}
		var all error
		for range 8 {
			all = errors.Join(all, <-errs)
		}
		return all
	})
	require.NoError(t, testwait.Finish(t, done))
	require.Len(t, c.free, 2)
}

func there(c *Coders, codec Codec, data []byte) error {
	p := c.NewCompressor()
	defer p.Release()
	compressed, err := p.Add(codec, [][]byte{data}, always)
	if err != nil || compressed == nil {
		return err
	}
	dst := make([]byte, len(data))
	if err := c.Decompress(codec, [][]byte{dst}, bytes.Join(compressed, nil), always); err != nil {
		return err
	}
	if !bytes.Equal(data, dst) {
		return errors.New("other bytes came back")
	}
	return nil
}

// hostile returns invalid compressed forms by name. Each is invalid for a part of 1000 bytes, with
// any codec.
func hostile(t testing.TB) map[string][]byte {
	coded := s2.Encode(nil, make([]byte, 1000))
	long := append(binary.AppendUvarint(nil, 1<<30), coded[2:]...)
	short := s2.Encode(nil, make([]byte, 999))
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	require.NoError(t, err)
	bomb := e.EncodeAll(make([]byte, 8<<20), nil)
	two := e.EncodeAll(make([]byte, 500), e.EncodeAll(make([]byte, 501), nil))
	n := func(p []byte) uint32 { return uint32(len(p)) }
	return map[string][]byte{
		"nothing":               {},
		"half a length":         {1, 0},
		"no block":              encodeForm([]uint32{0}),
		"an empty block":        encodeForm([]uint32{0}, coded),
		"a length beyond":       encodeForm([]uint32{1 << 31}, coded),
		"a block too long":      encodeForm([]uint32{1001}, make([]byte, 900)),
		"bytes left over":       encodeForm([]uint32{n(coded)}, coded, []byte{0}),
		"bytes missing":         encodeForm([]uint32{n(coded)}, coded[1:]),
		"a longer s2 block":     encodeForm([]uint32{n(long)}, long),
		"a shorter s2 block":    encodeForm([]uint32{n(short)}, short),
		"garbage":               encodeForm([]uint32{900}, random(900)),
		"a bomb":                encodeForm([]uint32{n(bomb)}, bomb),
		"two frames, too long":  encodeForm([]uint32{n(two)}, two),
		"no shorter than plain": encodeForm([]uint32{996}, random(996)),
	}
}

func TestHostileForms(t *testing.T) {
	c := New(1)
	for name, compressed := range hostile(t) {
		for _, codec := range bothCodecs {
			for _, n := range []int{1000, 2 * BlockSize} {
				memory := make([]byte, n+1)
				require.ErrorIs(t, c.Decompress(codec, [][]byte{memory[:n]}, compressed, always), ErrCorrupt, name)
				require.Zero(t, memory[n], name)
				copy(memory[n-len(compressed):], compressed)
				require.ErrorIs(t, c.DecompressInPlace(codec, [][]byte{memory[:n]}, len(compressed), always), ErrCorrupt, name)
				require.Zero(t, memory[n], name)
			}
		}
	}
	require.ErrorIs(t, c.DecompressInPlace(S2, [][]byte{make([]byte, 10)}, 11, always), ErrCorrupt)
	data := contents["text"](1000)
	requireUnpacked(t, c, Zstd, data, compressParts(t, c, Zstd, [][]byte{data}))
}

func TestNamesOfCodecs(t *testing.T) {
	require.Equal(t, "none s2 zstd codec 3", fmt.Sprint(None, " ", S2, " ", Zstd, " ", codecs))
	require.True(t, Zstd.Known())
	require.False(t, codecs.Known())
}
