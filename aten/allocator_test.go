package aten_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/aten"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// dirtyMemory allocates memory that is not zeroed, as memory that was used before is.
type dirtyMemory struct{}

func (dirtyMemory) Alloc(size int) (*tensor.Storage, error) {
	s, err := tensor.Heap{}.Alloc(size)
	if err != nil {
		return nil, err
	}
	p, err := s.Bytes()
	for i := range p {
		p[i] = 0xa5
	}
	return s, err
}

// TestDirtyMemory makes every call of the comparison with PyTorch in memory that is not zeroed, and
// checks that results and errors are those of zeroed memory.
func TestDirtyMemory(t *testing.T) {
	dirty := aten.Builtin(&ops.Engine{Alloc: dirtyMemory{}, MaxBytes: 1 << 30})
	names := map[string]bool{}
	for _, c := range torchCalls(t) {
		want, wantErr := table.Call(t.Context(), c.name, c.args, c.named)
		got, err := dirty.Call(t.Context(), c.name, c.args, c.named)
		require.Equal(t, fmt.Sprint(wantErr), fmt.Sprint(err), c.name)
		require.Len(t, got, len(want))
		for i := range want {
			requireSameBits(t, want[i], got[i], c.name)
		}
		if err == nil {
			names[c.name] = true
		}
	}
	require.GreaterOrEqual(t, len(names), len(table.Names()))
}

// requireSameBits fails the test unless got has the type of want and bit for bit its elements.
func requireSameBits(t *testing.T, want, got aten.Value, name string) {
	t.Helper()
	switch want := want.(type) {
	case *tensor.Tensor:
		same, err := tensor.Equal(want, got.(*tensor.Tensor))
		require.NoError(t, err)
		require.True(t, same, name)
	case *tensor.Sparse:
		same, err := tensor.EqualSparse(want, got.(*tensor.Sparse))
		require.NoError(t, err)
		require.True(t, same, name)
	case []*tensor.Tensor:
		list := got.([]*tensor.Tensor)
		require.Len(t, list, len(want))
		for i := range want {
			requireSameBits(t, want[i], list[i], name)
		}
	default:
		require.Equal(t, want, got, name)
	}
}
