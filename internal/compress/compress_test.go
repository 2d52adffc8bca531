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

	"github.com/tensorpipe-go/tensorpipe/internal/patience"
)

// What is packed is unpacked, next to the form and upon it, however the memory
// of either end is cut.
func TestRoundTrip(t *testing.T) {
	c := New(2)
	for name, content := range contents {
		for _, codec := range bothCodecs {
			t.Run(fmt.Sprint(name, " ", codec), func(t *testing.T) {
				for _, n := range sizes {
					data := content(n)
					form := pack(t, c, codec, [][]byte{data})
					require.True(t, bytes.Equal(form, pack(t, c, codec, cuts(data)["three pieces"])))
					if form != nil {
						require.Less(t, len(form), n)
						requireUnpacked(t, c, codec, data, form)
					}
				}
			})
		}
	}
}

func requireUnpacked(t *testing.T, c *Coders, codec Codec, data, form []byte) {
	t.Helper()
	memory := make([]byte, len(data)+1) // the last byte is somebody else's
	for cut, dst := range cuts(memory[:len(data):len(data)]) {
		clear(memory)
		require.NoError(t, c.Unpack(codec, dst, bytes.Clone(form), always), cut)
		requireSame(t, data, memory, cut)
		clear(memory)
		copy(memory[len(data)-len(form):], form)
		require.NoError(t, c.UnpackInPlace(codec, dst, len(form), always), cut)
		requireSame(t, data, memory, cut)
	}
}

func requireSame(t *testing.T, data, memory []byte, cut string) {
	t.Helper()
	require.True(t, bytes.Equal(data, memory[:len(data)]), cut)
	require.Zero(t, memory[len(data)], "nothing is written behind the part")
}

// What is known of the data shows in its form.
func TestGain(t *testing.T) {
	c := New(1)
	const n = 4 * BlockSize
	for _, codec := range bothCodecs {
		require.Nil(t, pack(t, c, codec, [][]byte{random(n)}), "nothing can be gained")
		require.Nil(t, pack(t, c, codec, [][]byte{{1, 2, 3}}))
		require.Less(t, len(pack(t, c, codec, [][]byte{make([]byte, n)})), n/100)
		half := len(pack(t, c, codec, [][]byte{contents["every other block"](n)}))
		require.Greater(t, half, n/2)
		require.Less(t, half, n/2+n/100)
	}
	for _, content := range []func(int) []byte{weights, normals} {
		require.NotNil(t, pack(t, c, Zstd, [][]byte{content(30_000)}), "weights gain")
		require.Nil(t, pack(t, c, S2, [][]byte{content(30_000)}), "but not by repeating themselves")
	}
}

// Blocks that gain nothing are sent from where they lie, and take no memory.
func TestIncompressibleBlocksStayWhereTheyAre(t *testing.T) {
	c := New(1)
	data := random(4 * BlockSize)
	clear(data[:BlockSize])
	p := c.NewPacking()
	defer p.Release()
	form, err := p.Add(S2, [][]byte{data}, always)
	require.NoError(t, err)
	require.Len(t, form, 5, "lengths, a block of zeros, three others")
	require.Same(t, &data[BlockSize], &form[2][0])
	require.Equal(t, slabSize, p.Bytes())

	for range 100 {
		_, err := p.Add(Zstd, [][]byte{data[BlockSize:]}, always)
		require.NoError(t, err)
	}
	require.Equal(t, slabSize, p.Bytes(), "what gained nothing takes nothing")
}

// Many small parts share slabs.
func TestSmallPartsShareMemory(t *testing.T) {
	c := New(1)
	p := c.NewPacking()
	defer p.Release()
	part := contents["text"](4096)
	total := 0
	var forms [][]byte
	for range 2000 {
		form, err := p.Add(S2, [][]byte{part}, always)
		require.NoError(t, err)
		require.NotNil(t, form)
		forms = append(forms, bytes.Join(form, nil))
		total += len(forms[0])
	}
	require.LessOrEqual(t, p.Bytes(), total+slabSize)
	for _, form := range forms {
		requireUnpacked(t, c, S2, part, form)
	}
}

var errEnough = errors.New("enough")

// enoughAfter gives up at the n-th look.
func enoughAfter(n int) func() error {
	return func() error {
		if n--; n < 0 {
			return errEnough
		}
		return nil
	}
}

func TestGivingUpBetweenBlocks(t *testing.T) {
	c := New(1)
	data := contents["text"](4 * BlockSize)
	for _, codec := range bothCodecs {
		form := pack(t, c, codec, [][]byte{data})
		for k := range 4 {
			p := c.NewPacking()
			_, err := p.Add(codec, [][]byte{data}, enoughAfter(k))
			require.ErrorIs(t, err, errEnough)
			require.Zero(t, p.Bytes())
			p.Release()
			require.ErrorIs(t, c.Unpack(codec, [][]byte{make([]byte, len(data))}, form, enoughAfter(k)), errEnough)
		}
		requireUnpacked(t, c, codec, data, form)
	}
}

// More callers than coders wait for each other and all come through.
func TestFewCodersServeMany(t *testing.T) {
	c := New(2)
	data := weights(3 * BlockSize)
	done := patience.Start(func() error {
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
	require.NoError(t, patience.Finish(t, done))
	require.Len(t, c.free, 2)
}

func there(c *Coders, codec Codec, data []byte) error {
	p := c.NewPacking()
	defer p.Release()
	form, err := p.Add(codec, [][]byte{data}, always)
	if err != nil || form == nil {
		return err
	}
	dst := make([]byte, len(data))
	if err := c.Unpack(codec, [][]byte{dst}, bytes.Join(form, nil), always); err != nil {
		return err
	}
	if !bytes.Equal(data, dst) {
		return errors.New("other bytes came back")
	}
	return nil
}

// hostile are forms that a part of 1000 bytes, or of two blocks, does not have.
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
		"no block":              formOf([]uint32{0}),
		"an empty block":        formOf([]uint32{0}, coded),
		"a length beyond":       formOf([]uint32{1 << 31}, coded),
		"a block too long":      formOf([]uint32{1001}, make([]byte, 900)),
		"bytes left over":       formOf([]uint32{n(coded)}, coded, []byte{0}),
		"bytes missing":         formOf([]uint32{n(coded)}, coded[1:]),
		"a longer s2 block":     formOf([]uint32{n(long)}, long),
		"a shorter s2 block":    formOf([]uint32{n(short)}, short),
		"garbage":               formOf([]uint32{900}, random(900)),
		"a bomb":                formOf([]uint32{n(bomb)}, bomb),
		"two frames, too long":  formOf([]uint32{n(two)}, two),
		"no shorter than plain": formOf([]uint32{996}, random(996)),
	}
}

func TestHostileForms(t *testing.T) {
	c := New(1)
	for name, form := range hostile(t) {
		for _, codec := range bothCodecs {
			for _, n := range []int{1000, 2 * BlockSize} {
				memory := make([]byte, n+1)
				require.ErrorIs(t, c.Unpack(codec, [][]byte{memory[:n]}, form, always), ErrCorrupt, name)
				require.Zero(t, memory[n], name)
				copy(memory[n-len(form):], form)
				require.ErrorIs(t, c.UnpackInPlace(codec, [][]byte{memory[:n]}, len(form), always), ErrCorrupt, name)
				require.Zero(t, memory[n], name)
			}
		}
	}
	require.ErrorIs(t, c.UnpackInPlace(S2, [][]byte{make([]byte, 10)}, 11, always), ErrCorrupt)
	data := contents["text"](1000)
	requireUnpacked(t, c, Zstd, data, pack(t, c, Zstd, [][]byte{data}))
}

func TestNamesOfCodecs(t *testing.T) {
	require.Equal(t, "none s2 zstd codec 3", fmt.Sprint(None, " ", S2, " ", Zstd, " ", codecs))
	require.True(t, Zstd.Known())
	require.False(t, codecs.Known())
}
