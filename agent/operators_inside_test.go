package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/aten"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// An operator runs on the goroutine that reads where its work is bounded by what came: small
// tensors that have elements. Those without make a result of any size.
func TestShortOperators(t *testing.T) {
	of := func(shape ...int) any {
		x, err := tensor.Zeros(tensor.F32, shape...)
		require.NoError(t, err)
		return x
	}
	vast, err := of(1).(*tensor.Tensor).Expand(1 << 30)
	require.NoError(t, err)
	for _, c := range []struct {
		name  string
		args  []any
		short bool
	}{
		{"aten::add", []any{of(2, 2), of(2, 2)}, true},
		{"aten::add", []any{of(128, 1), of(1, 128)}, true},
		{"aten::mm", []any{of(16, 8), of(8, 16)}, true},
		{"aten::sum", []any{of(16)}, true},
		{"aten::mm", []any{of(16384, 0), of(0, 16384)}, false},
		{"aten::bmm", []any{of(1, 16384, 0), of(1, 0, 16384)}, false},
		{"aten::matmul", []any{of(16384, 0), of(0, 16384)}, false},
		{"aten::linear", []any{of(16384, 0), of(16384, 0)}, false},
		{"aten::mv", []any{of(1<<20, 0), of(0)}, false},
		{"aten::sum", []any{of(1<<20, 0), []int64{1}}, false},
		{"aten::neg", []any{vast}, false},
		{"aten::add", []any{of(200), of(200)}, false},
		{"aten::expand", []any{of(1), []int64{1 << 30}}, false},
		{"aten::zeros", []any{[]int64{2}}, false},
	} {
		op, args, err := aten.Default().Resolve(c.name, c.args, nil)
		require.NoError(t, err, c.name)
		require.Equal(t, c.short, (&opTask{op: op, args: args}).short(), "%s %v", c.name, op.Schema)
	}
}
