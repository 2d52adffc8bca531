package hugepage_test

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/hugepage"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestWithin(t *testing.T) {
	const size = hugepage.Size
	p := make([]byte, 5*size)
	start := int(-uintptr(unsafe.Pointer(&p[0])) & (size - 1))
	p = p[start : start+4*size]
	for _, c := range []struct{ from, to, first, n int }{
		{0, 4 * size, 0, 4},
		{1, 4 * size, 1, 3},
		{0, 4*size - 1, 0, 3},
		{1, 2*size + 1, 1, 1},
		{1, 2*size - 1, 1, 0},
		{1, 2, 1, 0},
		{0, 0, 0, 0},
	} {
		got := hugepage.Within(p[c.from:c.to])
		require.Len(t, got, c.n*size, "%+v", c)
		if c.n > 0 {
			require.Same(t, &p[c.first*size], &got[0], "%+v", c)
		}
	}
	require.Empty(t, hugepage.Within(nil))
}

func TestMake(t *testing.T) {
	for _, n := range []int{0, 1, hugepage.Size, 2 * hugepage.Size, 5*hugepage.Size + 1} {
		p := hugepage.Make(n)
		require.Len(t, p, n)
		for _, b := range p {
			if b != 0 {
				t.Fatal("not zero")
			}
		}
	}
}

// Make returns memory of the requested size. From 16 MiB on, all of it but less than one huge page
// can consist of huge pages.
func TestMakeAligns(t *testing.T) {
	const size = hugepage.Size
	for _, n := range []int{0, 1, size, 3 * size, 8*size - 1, 8 * size, 8*size + 1, 31*size + 4097} {
		p := hugepage.Make(n)
		require.Len(t, p, n)
		if n >= 8*size {
			require.Equal(t, n, cap(p))
			require.Len(t, hugepage.Within(p), n/size*size)
		}
	}
}
