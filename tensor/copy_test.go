package tensor

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/invariants"
)

func TestCopyFromRefuses(t *testing.T) {
	x := arange(t, 2, 3)
	require.ErrorAs(t, x.CopyFrom(arange(t, 3, 2)), new(*ShapeError))
	require.ErrorAs(t, x.CopyFrom(arange(t, 6)), new(*ShapeError))
	other, err := Zeros(F64, 2, 3)
	require.NoError(t, err)
	require.ErrorAs(t, x.CopyFrom(other), new(*DTypeError))
}

func TestCopyWithinOneStorage(t *testing.T) {
	x := arange(t, 6)
	front, err := x.Narrow(0, 0, 5)
	require.NoError(t, err)
	back, err := x.Narrow(0, 1, 5)
	require.NoError(t, err)
	require.NoError(t, back.CopyFrom(front))
	require.Equal(t, []int64{0, 0, 1, 2, 3, 4}, list(t, x))

	square := arange(t, 3, 3)
	turned, err := square.Transpose(0, 1)
	require.NoError(t, err)
	require.NoError(t, square.CopyFrom(turned))
	require.Equal(t, []int64{0, 3, 6, 1, 4, 7, 2, 5, 8}, list(t, square))

	// Another storage of the same memory is detected too.
	y := arange(t, 6)
	buf, err := y.Buffer()
	require.NoError(t, err)
	alias, err := FromBuffer(buf, I64, 6)
	require.NoError(t, err)
	front, err = alias.Narrow(0, 0, 5)
	require.NoError(t, err)
	back, err = y.Slice(0, 1, 6, 1)
	require.NoError(t, err)
	require.NoError(t, back.CopyFrom(front))
	require.Equal(t, []int64{0, 0, 1, 2, 3, 4}, list(t, y))
}

func TestOverlap(t *testing.T) {
	s, err := Heap{}.Alloc(80)
	require.NoError(t, err)
	for _, c := range []struct {
		name           string
		shape, strides []int
		overlap        bool
	}{
		{"contiguous", []int{2, 5}, []int{5, 1}, false},
		{"transposed", []int{5, 2}, []int{1, 5}, false},
		{"gaps", []int{2, 2}, []int{5, 2}, false},
		{"windows", []int{4, 4}, []int{1, 1}, true},
		{"rows run into each other", []int{3, 3}, []int{2, 1}, true},
		{"repeated", []int{3}, []int{0}, true},
		{"one element", []int{1, 1}, []int{0, 0}, false},
		{"no element", []int{0, 3}, []int{0, 0}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, err := Strided(s, I64, c.shape, c.strides, 0)
			require.NoError(t, err)
			src, err := Zeros(I64, c.shape...)
			require.NoError(t, err)
			if c.overlap {
				require.ErrorIs(t, x.CopyFrom(src), ErrOverlap)
			} else {
				require.NoError(t, x.CopyFrom(src))
			}
		})
	}
}

// TestTransposedCopyOfEverySize checks the copy of a transposed tensor for every element size. The
// tensor is large enough for several tiles and has partial tiles.
func TestTransposedCopyOfEverySize(t *testing.T) {
	const rows, columns = 2*tile + 5, 3*tile + 1
	for _, dtype := range []DType{U8, F16, F32, C64, C128} {
		t.Run(dtype.String(), func(t *testing.T) {
			x, err := Zeros(dtype, rows, columns)
			require.NoError(t, err)
			p := x.storage.host
			for i := range p {
				p[i] = byte(i * 7 >> 3)
			}
			turned, err := x.Transpose(0, 1)
			require.NoError(t, err)
			clone, err := turned.Clone()
			require.NoError(t, err)
			q, size := clone.storage.host, dtype.Size()
			for i := range rows {
				for j := range columns {
					require.Equal(t, p[(i*columns+j)*size:][:size], q[(j*rows+i)*size:][:size])
				}
			}
		})
	}
}

func TestCopyAllocatesNothing(t *testing.T) {
	if invariants.Enabled {
		t.Skip("the checks under the tag invariants allocate")
	}
	x, err := Zeros(F32, 40, 50)
	require.NoError(t, err)
	turned, err := x.Transpose(0, 1)
	require.NoError(t, err)
	dst, err := Zeros(F32, 50, 40)
	require.NoError(t, err)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if err := dst.CopyFrom(turned); err != nil {
			t.Error(err)
		}
	}))
}

func TestCloneInPool(t *testing.T) {
	p := NewPool(PoolOptions{Limit: 2 * mib})
	x, err := Zeros(U8, 2*mib)
	require.NoError(t, err)
	require.NoError(t, Fill[uint8](x, 5))
	c, err := x.CloneIn(p)
	require.NoError(t, err)
	require.Equal(t, 2*mib, p.Stats().InUse)
	same, err := Equal(x, c)
	require.NoError(t, err)
	require.True(t, same)
	_, err = x.CloneIn(p)
	require.ErrorAs(t, err, new(*LimitError))
	c.Release()
}
