package ring_test

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/ring"
)

// wantMarkers checks the values of the tail and the head in the header of a ring.
func wantMarkers(t testing.TB, header []byte, tail, head uint64) {
	t.Helper()
	u64 := binary.NativeEndian.Uint64
	require.Equal(t, []uint64{tail, head}, []uint64{u64(header[24:]), u64(header[32:])}, "tail and head")
}

// wantShort checks that WriteAll of b returns ErrShort because b does not fit in the ring. The
// transaction is cancelled.
func wantShort(t testing.TB, p *ring.Producer, b string) {
	t.Helper()
	require.NoError(t, p.Begin())
	require.ErrorIs(t, p.WriteAll([]byte(b)), ring.ErrShort)
	require.NoError(t, p.Cancel())
}

// wantRead begins a transaction of c and checks that the next bytes read in it are want. The
// transaction stays open.
func wantRead(t testing.TB, c *ring.Consumer, want string) {
	t.Helper()
	require.NoError(t, c.Begin())
	b := make([]byte, len(want))
	require.NoError(t, c.ReadAll(b))
	require.Equal(t, want, string(b))
}

// wantCommitOnce commits the transaction of c, and checks that a second Commit returns ErrIdle.
func wantCommitOnce(t testing.TB, c *ring.Consumer) {
	t.Helper()
	require.NoError(t, c.Commit())
	require.ErrorIs(t, c.Commit(), ring.ErrIdle)
}

func TestParity(t *testing.T) {
	parity.Case(t, "tensorpipe/common.RingBuffer", func(t *testing.T) {
		t.Run("WriteCopy", testWriteCopy)
		t.Run("ReadMultipleElems", testReadMultipleElems)
		t.Run("CopyWrapping", testCopyWrapping)
		t.Run("ReadTxWrappingOneCons", testReadTxWrappingOneCons)
		t.Run("ReadTxWrapping", testReadTxWrapping)
		t.Run("accessContiguousInTx", testAccessContiguous)
	})
}

// Two records of 6 bytes fit in 16 bytes; a third one does not.
func testWriteCopy(t *testing.T) {
	r, _, _ := local(t, 16)
	p, c := r.Producer(), r.Consumer()
	require.Zero(t, readable(t, c))
	for range 3 {
		put(t, p, "first.")
		require.Equal(t, 6, readable(t, c))
		put(t, p, "second")
		require.Equal(t, 12, readable(t, c))
		wantShort(t, p, "third.")
		require.Equal(t, 12, readable(t, c))
		require.Equal(t, 4, free(t, p))

		require.Equal(t, "first.", get(t, c, 6))
		require.Equal(t, "second", get(t, c, 6))
		require.Zero(t, readable(t, c))
		put(t, p, "third.")
		require.Equal(t, "third.", get(t, c, 6))
		require.Zero(t, readable(t, c))
	}
}

// Pairs of bytes that fill a ring can be read in pieces of other sizes. After that the ring is
// empty.
func testReadMultipleElems(t *testing.T) {
	r, _, _ := local(t, 256)
	p, c := r.Producer(), r.Consumer()
	var all string
	for i := range 128 {
		pair := string([]byte{0xac, byte(i)})
		put(t, p, pair)
		all += pair
	}
	require.Equal(t, 256, readable(t, c))
	wantShort(t, p, "xx")
	wantShort(t, p, "x")
	require.Equal(t, all[:3], get(t, c, 3))
	require.Equal(t, all[3:], get(t, c, 253))

	require.NoError(t, c.Begin())
	require.ErrorIs(t, c.ReadAll(make([]byte, 1)), ring.ErrShort)
	require.NoError(t, c.Cancel())
	require.ErrorIs(t, c.Cancel(), ring.ErrIdle)
	require.Equal(t, 256, free(t, p))
}

// wrapped returns an empty ring of 8 bytes, its header and its data. One byte was written and read,
// so the next 8 bytes continue at the beginning of the data.
func wrapped(t *testing.T) (r *ring.Ring, header, data []byte) {
	t.Helper()
	r, header, data = local(t, 8)
	p, c := r.Producer(), r.Consumer()
	wantMarkers(t, header, 0, 0)
	put(t, p, "x")
	wantMarkers(t, header, 0, 1)
	wantShort(t, p, "01234567")
	wantMarkers(t, header, 0, 1)

	require.ErrorIs(t, c.Commit(), ring.ErrIdle)
	wantRead(t, c, "x")
	wantMarkers(t, header, 0, 1)
	wantCommitOnce(t, c)
	wantMarkers(t, header, 1, 1)
	return r, header, data
}

func testCopyWrapping(t *testing.T) {
	r, header, data := wrapped(t)
	put(t, r.Producer(), "01234567")
	wantMarkers(t, header, 1, 9)
	require.Equal(t, "70123456", string(data))
	require.Zero(t, free(t, r.Producer()))
	require.Equal(t, "01234567", get(t, r.Consumer(), 8))
	wantMarkers(t, header, 9, 9)
}

// A transaction whose bytes wrap around the end of the ring can be committed once, or cancelled and
// repeated.
func testReadTxWrappingOneCons(t *testing.T) {
	r, header, _ := wrapped(t)
	p, c := r.Producer(), r.Consumer()
	put(t, p, "01234567")
	wantRead(t, c, "01234567")
	wantMarkers(t, header, 1, 9)
	wantCommitOnce(t, c)

	put(t, p, "abcdefgh")
	wantMarkers(t, header, 9, 17)
	for range 2 {
		wantRead(t, c, "abcdefgh")
		wantMarkers(t, header, 9, 17)
		require.NoError(t, c.Cancel())
		require.Equal(t, 8, readable(t, c))
	}
	wantRead(t, c, "abcdefgh")
	wantMarkers(t, header, 9, 17)
	wantCommitOnce(t, c)
	wantMarkers(t, header, 17, 17)
	require.ErrorIs(t, c.Cancel(), ring.ErrIdle)

	require.NoError(t, p.Begin())
	require.NoError(t, p.WriteAll([]byte("lost")))
	require.NoError(t, p.Cancel())
	require.Zero(t, readable(t, c))
	put(t, p, "kept")
	require.Equal(t, "kept", get(t, c, 4))
}

// While one consumer is in a transaction, Begin of another one returns ErrBusy. After a cancelled
// transaction either of them can read the bytes.
func testReadTxWrapping(t *testing.T) {
	r, header, data := wrapped(t)
	other, err := ring.Open(header, data)
	require.NoError(t, err)
	p, one, two := r.Producer(), r.Consumer(), other.Consumer()
	put(t, p, "01234567")
	wantRead(t, one, "01234567")
	wantMarkers(t, header, 1, 9)
	require.ErrorIs(t, two.Begin(), ring.ErrBusy)
	require.ErrorIs(t, one.Begin(), ring.ErrBusy)
	wantCommitOnce(t, one)

	put(t, p, "abcdefgh")
	wantMarkers(t, header, 9, 17)
	wantRead(t, two, "abcdefgh")
	wantMarkers(t, header, 9, 17)
	require.NoError(t, two.Cancel())
	wantRead(t, one, "abcdefgh")
	wantMarkers(t, header, 9, 17)
	wantCommitOnce(t, one)
	require.ErrorIs(t, two.Commit(), ring.ErrIdle)
	wantMarkers(t, header, 17, 17)
}

// wantSpans reads up to n bytes in place, and checks that Next returns the slices first and second,
// and that the ring then has left more bytes.
func wantSpans(t testing.TB, c *ring.Consumer, n int, first, second string, left int) {
	t.Helper()
	require.NoError(t, c.Begin())
	a, b, err := c.Next(n)
	require.NoError(t, err)
	require.Equal(t, []string{first, second}, []string{string(a), string(b)})
	require.NoError(t, c.Commit())
	require.Equal(t, left, readable(t, c))
}

// Bytes are read in place: at the beginning, across the end, up to the end, all, and none.
func testAccessContiguous(t *testing.T) {
	r, _, _ := local(t, 256)
	p, c := r.Producer(), r.Consumer()
	fill := func(pair string, n int) {
		for range n {
			put(t, p, pair)
		}
		require.Equal(t, 256, readable(t, c))
		wantShort(t, p, "x")
	}
	half := func(b string) string { return strings.Repeat(b, 128) }
	fill("aa", 128)
	wantSpans(t, c, 128, half("a"), "", 128)
	fill("bb", 64)
	wantSpans(t, c, 256, half("a"), half("b"), 0)
	put(t, p, half("b"))
	fill("cc", 64)
	wantSpans(t, c, 128, half("b"), "", 128)
	fill("cc", 64)
	wantSpans(t, c, 256, half("c")+half("c"), "", 0)
	wantSpans(t, c, 200, "", "", 0)
}
