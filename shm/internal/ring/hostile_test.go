package ring_test

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/shm/internal/ring"
)

func header(size, mask uint64) []byte {
	h := make([]byte, ring.HeaderSize)
	binary.NativeEndian.PutUint64(h, size)
	binary.NativeEndian.PutUint64(h[8:], mask)
	return h
}

func TestInvalidSizes(t *testing.T) {
	h := make([]byte, ring.HeaderSize+8)
	for _, size := range []int{math.MinInt, -2, 0, 1, 3, 4095, ring.MaxSize + 1} {
		require.ErrorIs(t, ring.Init(h, size), ring.ErrForm, size)
	}
	for name, bad := range map[string][]byte{"none": nil, "short": h[:ring.HeaderSize-1], "not aligned": h[4:]} {
		require.ErrorIs(t, ring.Init(bad, 16), ring.ErrForm, name)
		_, err := ring.Open(bad, make([]byte, 16))
		require.ErrorIs(t, err, ring.ErrForm, name)
	}
	require.NoError(t, ring.Init(h, ring.MaxSize))
	require.NoError(t, ring.Init(h, ring.MinSize))
}

func TestCorruptHeaders(t *testing.T) {
	for name, c := range map[string]struct {
		size, mask uint64
		data       int
	}{
		"empty":              {0, math.MaxUint64, 0},
		"zero":               {0, 0, 16},
		"one byte":           {1, 0, 1},
		"no power of two":    {48, 47, 48},
		"another mask":       {16, 31, 16},
		"no mask":            {16, 0, 16},
		"larger than data":   {32, 31, 16},
		"smaller than data":  {8, 7, 16},
		"larger than any":    {1 << 63, 1<<63 - 1, 16},
		"larger than int":    {1 << 32, 1<<32 - 1, 16},
		"all bits":           {math.MaxUint64, math.MaxUint64 - 1, 16},
		"with nothing to it": {16, 15, 0},
	} {
		_, err := ring.Open(header(c.size, c.mask), make([]byte, c.data))
		require.ErrorIs(t, err, ring.ErrCorrupt, name)
	}
}

// Impossible values of head and tail are errors that match ErrCorrupt, in transactions and outside
// of them.
func TestCorruptMarkers(t *testing.T) {
	for name, c := range map[string]struct{ tail, head uint64 }{
		"more than fits":       {0, 17},
		"tail before head":     {1, 0},
		"far apart":            {0, math.MaxUint64},
		"just below the start": {0, math.MaxUint64 - 15},
		"a sign":               {1 << 63, 0},
		"wrapped, too much":    {math.MaxUint64, 16},
	} {
		t.Run(name, func(t *testing.T) {
			r, h, _ := local(t, 16)
			binary.NativeEndian.PutUint64(h[24:], c.tail)
			binary.NativeEndian.PutUint64(h[32:], c.head)
			p, cons := r.Producer(), r.Consumer()
			for range 2 {
				_, err := p.Free()
				require.ErrorIs(t, err, ring.ErrCorrupt)
				_, err = cons.Readable()
				require.ErrorIs(t, err, ring.ErrCorrupt)
				for _, s := range []*ring.End{&p.End, &cons.End} {
					require.NoError(t, s.Begin())
					for _, n := range []int{1, 16, math.MaxInt} {
						first, second, err := s.Next(n)
						require.ErrorIs(t, err, ring.ErrCorrupt)
						require.Empty(t, first)
						require.Empty(t, second)
					}
					require.NoError(t, s.Cancel())
				}
			}
			require.NoError(t, p.Begin())
			n, err := p.Write([]byte("x"))
			require.ErrorIs(t, err, ring.ErrCorrupt)
			require.Zero(t, n)
			require.ErrorIs(t, p.WriteAll([]byte("x")), ring.ErrCorrupt)
			require.NoError(t, cons.Begin())
			n, err = cons.Read(make([]byte, 1))
			require.ErrorIs(t, err, ring.ErrCorrupt)
			require.Zero(t, n)
			require.ErrorIs(t, cons.ReadAll(make([]byte, 1)), ring.ErrCorrupt)
		})
	}
}

// A ring works while its head and tail exceed 2^64 and begin again at 0.
func TestMarkersWrap(t *testing.T) {
	r, h, _ := local(t, 16)
	binary.NativeEndian.PutUint64(h[24:], math.MaxUint64-3)
	binary.NativeEndian.PutUint64(h[32:], math.MaxUint64-3)
	p, c := r.Producer(), r.Consumer()
	for _, want := range []string{"0123456789ABCDEF", "abcdefgh"} {
		put(t, p, want)
		require.Equal(t, 16-len(want), free(t, p))
		require.Equal(t, want, get(t, c, len(want)))
	}
	require.EqualValues(t, 20, binary.NativeEndian.Uint64(h[32:]))
}

// A transaction uses the value of its own counter at its beginning, whatever the peer writes there
// later.
func TestOwnMarkerIsKept(t *testing.T) {
	r, h, _ := local(t, 16)
	p, c := r.Producer(), r.Consumer()
	require.NoError(t, p.Begin())
	require.NoError(t, p.WriteAll([]byte("abc")))
	binary.NativeEndian.PutUint64(h[32:], 12345)
	require.Equal(t, 13, free(t, p))
	require.NoError(t, p.WriteAll([]byte("def")))
	require.NoError(t, p.Commit())
	require.Equal(t, "abcdef", get(t, c, 6))
}

func TestWithoutTransaction(t *testing.T) {
	r, h, _ := local(t, 16)
	put(t, r.Producer(), "abc")
	before := string(h)
	p, c := r.Producer(), r.Consumer()
	for _, s := range []*ring.End{&p.End, &c.End} {
		_, _, err := s.Next(1)
		require.ErrorIs(t, err, ring.ErrIdle)
		require.ErrorIs(t, s.Publish(), ring.ErrIdle)
		require.ErrorIs(t, s.Commit(), ring.ErrIdle)
		require.ErrorIs(t, s.Cancel(), ring.ErrIdle)
	}
	_, err := p.Write([]byte("x"))
	require.ErrorIs(t, err, ring.ErrIdle)
	require.ErrorIs(t, p.WriteAll([]byte("x")), ring.ErrIdle)
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, ring.ErrIdle)
	require.ErrorIs(t, c.ReadAll(make([]byte, 1)), ring.ErrIdle)
	require.Equal(t, before, string(h))
}

// If a peer sets the flag of a role, Begin returns ErrBusy at this end. If a peer clears the flag
// of this end's transaction, the transaction is not affected.
func TestForeignFlags(t *testing.T) {
	r, h, _ := local(t, 16)
	p, c := r.Producer(), r.Consumer()
	for _, flag := range []byte{1, 2, 0x80, 0xff} {
		h[16], h[17] = flag, flag
		require.ErrorIs(t, p.Begin(), ring.ErrBusy)
		require.ErrorIs(t, c.Begin(), ring.ErrBusy)
	}
	h[16], h[17] = 0, 0
	require.NoError(t, p.Begin())
	h[17] = 0
	require.NoError(t, p.WriteAll([]byte("abc")))
	require.NoError(t, p.Commit())
	require.Equal(t, "abc", get(t, c, 3))
	require.Equal(t, make([]byte, 8), h[16:24])
}
