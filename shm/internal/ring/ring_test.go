package ring_test

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/shm/internal/ring"
)

// local returns an empty ring with size bytes of data in the memory of this process, and its header
// and data.
func local(t testing.TB, size int) (r *ring.Ring, header, data []byte) {
	t.Helper()
	header, data = make([]byte, ring.HeaderSize), make([]byte, size)
	require.NoError(t, ring.Init(header, size))
	r, err := ring.Open(header, data)
	require.NoError(t, err)
	require.Equal(t, size, r.Size())
	return r, header, data
}

// put writes all of b to the ring in one transaction.
func put(t testing.TB, p *ring.Producer, b string) {
	t.Helper()
	require.NoError(t, p.Begin())
	require.NoError(t, p.WriteAll([]byte(b)))
	require.NoError(t, p.Commit())
}

func get(t testing.TB, c *ring.Consumer, n int) string {
	t.Helper()
	b := make([]byte, n)
	require.NoError(t, c.Begin())
	require.NoError(t, c.ReadAll(b))
	require.NoError(t, c.Commit())
	return string(b)
}

func readable(t testing.TB, c *ring.Consumer) int {
	t.Helper()
	n, err := c.Readable()
	require.NoError(t, err)
	return n
}

func free(t testing.TB, p *ring.Producer) int {
	t.Helper()
	n, err := p.Free()
	require.NoError(t, err)
	return n
}

// Several reads in one transaction return consecutive bytes. The producer can reuse their space
// only after Commit.
func TestReadsOfOneTransaction(t *testing.T) {
	r, _, _ := local(t, 256)
	p, c := r.Producer(), r.Consumer()
	put(t, p, "abcdefghi")
	require.NoError(t, c.Begin())
	for i, want := range []string{"abc", "def", "ghi"} {
		b := make([]byte, 3)
		require.NoError(t, c.ReadAll(b))
		require.Equal(t, want, string(b))
		require.Equal(t, 6-3*i, readable(t, c))
	}
	require.ErrorIs(t, c.ReadAll(make([]byte, 1)), ring.ErrShort)
	require.Equal(t, 256-9, free(t, p), "nothing is given back before the commit")
	require.NoError(t, c.Commit())
	require.Equal(t, 256, free(t, p))
}

// Producers and consumers do not affect each other, and a second producer is busy.
func TestRolesAreSeparate(t *testing.T) {
	r, header, data := local(t, 8)
	other, err := ring.Open(header, data)
	require.NoError(t, err)
	p, one, two := r.Producer(), r.Consumer(), other.Consumer()
	put(t, p, "abcd")
	require.NoError(t, one.Begin())
	require.NoError(t, one.ReadAll(make([]byte, 2)))
	put(t, p, "ef")
	require.NoError(t, one.Cancel())
	require.Equal(t, "abc", get(t, two, 3))
	require.Equal(t, "def", get(t, one, 3))

	again := other.Producer()
	require.NoError(t, p.Begin())
	require.ErrorIs(t, again.Begin(), ring.ErrBusy)
	require.NoError(t, p.Cancel())
	put(t, again, "z")
	require.Equal(t, "z", get(t, one, 1))
}

// Next returns one or two slices, with as many bytes as requested or available.
func TestNext(t *testing.T) {
	for _, step := range []struct {
		what          string
		before, n     int
		first, second int
	}{
		{"nothing", 0, 0, 0, 0},
		{"less than nothing", 0, -1, 0, 0},
		{"one span", 0, 10, 10, 0},
		{"up to the end", 10, 6, 6, 0},
		{"all from the beginning", 16, 16, 16, 0},
		{"two spans", 10, 10, 6, 4},
		{"all in two spans", 1, 16, 15, 1},
		{"more than there is, in one", 16, 100, 16, 0},
		{"more than there is, in two", 10, 100, 6, 10},
	} {
		t.Run(step.what, func(t *testing.T) {
			r, _, _ := local(t, 16)
			p, c := r.Producer(), r.Consumer()
			put(t, p, strings.Repeat("-", step.before))
			get(t, c, step.before)
			require.NoError(t, p.Begin())
			first, second, err := p.Next(step.n)
			require.NoError(t, err)
			require.Equal(t, []int{step.first, step.second}, []int{len(first), len(second)})
			require.Equal(t, []int{step.first, step.second}, []int{cap(first), cap(second)})
			fill(first, 1)
			fill(second, 1+len(first))
			require.NoError(t, p.Commit())

			require.NoError(t, c.Begin())
			first, second, err = c.Next(step.n)
			require.NoError(t, err)
			for i, b := range append(first[:len(first):len(first)], second...) {
				require.EqualValues(t, i+1, b)
			}
			require.Equal(t, step.first+step.second, len(first)+len(second))
			require.NoError(t, c.Commit())
			require.Equal(t, 16, free(t, p))
		})
	}
}

func fill(b []byte, from int) {
	for i := range b {
		b[i] = byte(from + i)
	}
}

// The header is that of the C++ library, byte by byte.
func TestHeader(t *testing.T) {
	r, header, _ := local(t, 16)
	p, c := r.Producer(), r.Consumer()
	put(t, p, "abcdef")
	get(t, c, 2)
	u64 := binary.NativeEndian.Uint64
	require.Equal(t, []uint64{16, 15, 0, 2, 6}, []uint64{u64(header), u64(header[8:]), u64(header[16:]), u64(header[24:]), u64(header[32:])})
	require.NoError(t, c.Begin())
	require.Equal(t, []byte{1, 0, 0, 0, 0, 0, 0, 0}, header[16:24])
	require.NoError(t, p.Begin())
	require.Equal(t, []byte{1, 1, 0, 0, 0, 0, 0, 0}, header[16:24])
	require.NoError(t, c.Cancel())
	copy(header[18:], "beside")
	require.NoError(t, p.Commit())
	require.NoError(t, c.Begin())
	require.NoError(t, c.Commit())
	require.Equal(t, "\x00\x00beside", string(header[16:24]))
}
