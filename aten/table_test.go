package aten_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/aten"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/invariants"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

type values = []aten.Value

// call calls an operator of the table that has one result, and returns the result. It fails the
// test if there is an error.
func call(t *testing.T, table *aten.Table, name string, args ...aten.Value) aten.Value {
	t.Helper()
	out, err := table.Call(t.Context(), name, args, nil)
	require.NoError(t, err)
	require.Len(t, out, 1)
	return out[0]
}

// requireData fails the test unless got is a contiguous tensor with exactly the elements want, in
// row-major order.
func requireData[T tensor.Element](t *testing.T, got aten.Value, want ...T) {
	t.Helper()
	data, err := tensor.Data[T](got.(*tensor.Tensor))
	require.NoError(t, err)
	require.Equal(t, want, data)
}

func TestOverloads(t *testing.T) {
	table := aten.Default()
	x := tensorOf(t, float32(1), 2)
	requireData(t, call(t, table, "aten::add", x, x), float32(2), 4)
	requireData(t, call(t, table, "aten::add", x, int64(3)), float32(4), 5)
	requireData(t, call(t, table, "aten::add", x, 3, 2), float32(7), 8)
	requireData(t, call(t, table, "aten::add.Scalar", x, 0.5), float32(1.5), 2.5)
	requireData(t, call(t, table, "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", x, x), float32(2), 4)
	requireData(t, call(t, table, "aten::zeros", []int{2}), float32(0), 0)
	requireData(t, call(t, table, "aten::sum", x), float32(3))
	requireData(t, call(t, table, "aten::sum", x, 0), float32(3))

	out, err := table.Call(t.Context(), "aten::add", values{x}, map[string]aten.Value{"other": x, "alpha": int64(2)})
	require.NoError(t, err)
	requireData(t, out[0], float32(3), 6)

	op, args, err := table.Resolve("aten::add", values{x, x}, nil)
	require.NoError(t, err)
	require.Equal(t, "aten::add.Tensor", op.Schema.FullName())
	require.Equal(t, values{x, x, int64(1)}, args)
}

func TestUnknown(t *testing.T) {
	table := aten.Default()
	for name, near := range map[string]string{
		"aten::foo":        "",
		"aten::add.Foo":    "aten::add",
		"aten::sum.":       "",
		"aten::log_soft":   "aten::log_softmax",
		"aten::additional": "aten::add",
		"":                 "",
		"add":              "aten::add",
		"aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=2) -> Tensor": "aten::add",
		"aten::add.Tensor(nonsense":  "aten::add",
		strings.Repeat("x", 1000000): "",
	} {
		_, err := table.Lookup(name)
		if name == "aten::sum." {
			require.NoError(t, err, "the name refers to the overload without a name")
			continue
		}
		var unknown *aten.UnknownError
		require.ErrorAs(t, err, &unknown, name)
		require.Equal(t, near, unknown.Near, name)
		require.True(t, strings.HasPrefix(err.Error(), "Cannot find matching operator for schema "+name[:min(len(name), 100)]), err)
		require.Less(t, len(err.Error()), 1000)
		_, err = table.Call(t.Context(), name, nil, nil)
		require.ErrorAs(t, err, &unknown)
	}
}

func TestArguments(t *testing.T) {
	table := aten.Default()
	x := tensorOf(t, float32(1), 2)
	for _, c := range []struct {
		name  string
		args  values
		named map[string]aten.Value
		want  string
	}{
		{"aten::neg", values{}, nil, `aten::neg: argument "self" (position 0) is missing; want Tensor`},
		{"aten::neg", values{"x"}, nil, `aten::neg: argument "self" (position 0) is str; want Tensor`},
		{"aten::neg", values{nil}, nil, `is None; want Tensor`},
		{"aten::neg", values{(*tensor.Tensor)(nil)}, nil, `is None; want Tensor`},
		{"aten::neg", values{struct{}{}}, nil, `is struct {}; want Tensor`},
		{"aten::neg", values{x, x}, nil, "aten::neg takes at most 1 positional arguments, not 2"},
		{"aten::neg", values{x}, named{"self": x}, `argument "self" (position 0) is given twice; want one value`},
		{"aten::neg", values{x}, named{"b": x, "a": x}, `aten::neg: argument "a" does not exist`},
		{"aten::permute", values{x, []int64(nil)}, nil, "cannot be permuted"},
		{"aten::permute", values{x, 3}, nil, `argument "dims" (position 1) is int; want int[]`},
		{"aten::cat", values{[]*tensor.Tensor{x, nil}}, nil, `argument "tensors" (position 0) is Tensor[2]; want Tensor[]`},
		{"aten::cat", values{x}, nil, `is Tensor f32[2]; want Tensor[]`},
		{"aten::allclose", values{x, x, "near"}, nil, `argument "rtol" (position 2) is str; want float`},
		{"aten::softmax", values{x, 0, 99}, nil, "no dtype has the number 99 (aten::softmax.int)"},
		{"aten::softmax", values{x, 0, "f99"}, nil, `"f99"`},
		{"aten::zeros", values{[]int{1}}, named{"device": "cuda:0"}, "tensors are created on the cpu"},
		{"aten::zeros", values{[]int{1}}, named{"layout": 1}, "only the strided layout"},
		{"aten::zeros", values{[]int{1}}, named{"pin_memory": true}, "pinned"},
	} {
		_, err := table.Call(t.Context(), c.name, c.args, c.named)
		require.ErrorContains(t, err, c.want)
		require.ErrorContains(t, err, c.name)
	}
	_, err := table.Call(t.Context(), "aten::zeros", values{[]int{1}}, named{"device": "cpu", "dtype": "i8", "layout": 0, "pin_memory": false})
	require.NoError(t, err)
}

func TestNoOverload(t *testing.T) {
	_, err := aten.Default().Call(t.Context(), "aten::add", values{tensorOf(t, 1.0), "two"}, nil)
	var none *aten.OverloadError
	require.ErrorAs(t, err, &none)
	require.EqualError(t, err, `aten::add: no overload takes (Tensor f64[1], str): `+
		`aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor: argument "other" (position 1) is str; want Tensor; `+
		`aten::add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor: argument "other" (position 1) is str; want Scalar`)
	var argument *aten.ArgumentError
	require.ErrorAs(t, err, &argument)
	require.Equal(t, 1, argument.At)

	_, err = aten.Default().Call(t.Context(), "aten::add", values{1, 2, 3, 4}, nil)
	require.ErrorContains(t, err, "-> Tensor: takes at most 2 positional arguments, not 4; aten::add.Scalar(")
}

func TestTable(t *testing.T) {
	var table aten.Table
	double := aten.Operator{
		Schema: aten.MustParse("mine::double(Tensor self) -> Tensor"),
		Kernel: func(ctx context.Context, args []aten.Value) ([]aten.Value, error) {
			return aten.Default().Call(ctx, "aten::mul", values{args[0], int64(2)}, nil)
		},
	}
	var unknown *aten.UnknownError
	require.ErrorAs(t, table.Replace(double), &unknown)
	require.NoError(t, table.Register(double))
	var registered *aten.RegisteredError
	require.ErrorAs(t, table.Register(double), &registered)
	require.Equal(t, []string{"mine::double"}, table.Names())
	requireData(t, call(t, &table, "mine::double", tensorOf(t, 1.5)), 3.0)

	clone := table.Clone()
	double.Kernel = func(context.Context, []aten.Value) ([]aten.Value, error) { return values{}, nil }
	require.NoError(t, clone.Replace(double))
	_, err := clone.Call(t.Context(), "mine::double", values{tensorOf(t, 1.5)}, nil)
	require.ErrorContains(t, err, "the kernel returned 0 results, its schema has 1")
	requireData(t, call(t, &table, "mine::double", tensorOf(t, 1.5)), 3.0)
}

// variable is a type of an application that wraps a tensor.
type variable struct {
	*tensor.Tensor
	from string
}

// TestReplace checks that an application can replace an operator by one whose kernel accepts a type
// of the application and calls the previous kernel. Other tables and operators do not change.
func TestReplace(t *testing.T) {
	table := aten.Default()
	plain, err := table.Lookup("aten::mul.Tensor")
	require.NoError(t, err)
	was := *plain[0]
	require.NoError(t, table.Replace(aten.Operator{
		Schema:     was.Schema,
		Tensorlike: func(v aten.Value) bool { _, ok := v.(*variable); return ok },
		Kernel: func(ctx context.Context, args []aten.Value) ([]aten.Value, error) {
			v, ok := args[0].(*variable)
			if !ok {
				return was.Kernel(ctx, args)
			}
			out, err := was.Kernel(ctx, values{v.Tensor, args[1]})
			if err != nil {
				return nil, err
			}
			return values{&variable{out[0].(*tensor.Tensor), was.Schema.FullName()}}, nil
		},
	}))
	x := tensorOf(t, 2.0)
	out := call(t, table, "aten::mul", &variable{Tensor: x}, x).(*variable)
	require.Equal(t, "aten::mul.Tensor", out.from)
	requireData(t, out.Tensor, 4.0)
	requireData(t, call(t, table, "aten::mul", x, x), 4.0)
	_, err = table.Call(t.Context(), "aten::neg", values{&variable{Tensor: x}}, nil)
	require.ErrorContains(t, err, "want Tensor")
	requireData(t, call(t, aten.Default(), "aten::mul", x, x), 4.0)
}

func TestKernelErrors(t *testing.T) {
	table := aten.Default()
	_, err := table.Call(t.Context(), "aten::add", values{tensorOf(t, 1.0, 2), tensorOf(t, 1.0, 2, 3)}, nil)
	require.EqualError(t, err, "The size of tensor a (2) must match the size of tensor b (3) at non-singleton dimension 0 (aten::add.Tensor)")
	var failed *aten.KernelError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "aten::add.Tensor", failed.Operator)
	var size *ops.SizeError
	require.ErrorAs(t, err, &size)
	require.Equal(t, ops.SizeError{A: 2, B: 3, Dim: 0}, *size)

	s, err := tensor.NewSparse(must(tensor.Zeros(tensor.I64, 1, 0)), tensorOf[float32](t), 5)
	require.NoError(t, err)
	_, err = table.Call(t.Context(), "aten::exp", values{s}, nil)
	require.EqualError(t, err, "does not take a sparse Tensor f32[5]; convert it with to_dense first (aten::exp)")

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("nobody waits"))
	_, err = table.Call(ctx, "aten::mm", values{must(tensor.Zeros(tensor.F32, 2, 2)), must(tensor.Zeros(tensor.F32, 2, 2))}, nil)
	require.ErrorIs(t, err, context.Canceled)
}

// TestSparseDivScalar checks that dividing a sparse tensor by a number keeps its shape and indices,
// returns F32 for integers, and does not modify the argument. Dividing it by a tensor fails.
func TestSparseDivScalar(t *testing.T) {
	inf := float32(math.Inf(1))
	indices := must(tensorOf[int64](t, 0, 1, 0, 2, 0, 2).View(2, 3)) // has (0, 2) twice
	for _, c := range []struct {
		values *tensor.Tensor
		by     aten.Value
		want   *tensor.Tensor
	}{
		{tensorOf[int64](t, 3, 4, -5), int64(2), tensorOf[float32](t, 1.5, 2, -2.5)},
		{tensorOf[float32](t, 3, 4, -5), int64(2), tensorOf[float32](t, 1.5, 2, -2.5)},
		{tensorOf[float64](t, 3, 4, -5), 0.5, tensorOf[float64](t, 6, 8, -10)},
		{tensorOf[float32](t, 3, 4, -5), int64(0), tensorOf(t, inf, inf, -inf)},
	} {
		before := must(c.values.Clone())
		s := must(tensor.NewSparse(indices, c.values, 2, 3))
		out, err := aten.Default().Call(t.Context(), "aten::div", values{s, c.by}, nil)
		require.NoError(t, err)
		got := out[0].(*tensor.Sparse)
		require.Equal(t, []int{2, 3}, got.Shape())
		require.False(t, got.Coalesced())
		for _, parts := range [][2]*tensor.Tensor{{indices, got.Indices()}, {c.want, got.Values()}, {before, c.values}} {
			require.True(t, must(tensor.Equal(parts[0], parts[1])), "%v is not %v", parts[1], parts[0])
		}
	}
	_, err := aten.Default().Call(t.Context(), "aten::div", values{must(tensor.NewSparse(indices, must(tensor.Zeros(tensor.F32, 3)), 2, 3)), tensorOf(t, 1.0)}, nil)
	require.ErrorContains(t, err, "does not take a sparse")
}

// TestSparseValuesAreAllocatedOnce checks that division, multiplication and negation of a sparse
// tensor allocate the values of the result only once. The values are one row, much larger than the
// indices.
func TestSparseValuesAreAllocatedOnce(t *testing.T) {
	const n = 1 << 18
	row := must(tensor.Zeros(tensor.F32, 1, n))
	s := must(tensor.NewSparse(must(tensorOf[int64](t, 0).View(1, 1)), row, 1, n))
	table := aten.Default()
	for name, args := range map[string]values{"aten::div": {s, int64(2)}, "aten::mul": {s, int64(2)}, "aten::neg": {s}} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		out, err := table.Call(t.Context(), name, args, nil)
		runtime.ReadMemStats(&after)
		require.NoError(t, err)
		require.Equal(t, []int{1, n}, out[0].(*tensor.Sparse).Values().Shape())
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(2*4*n), name)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestLimits checks that calls with small arguments that describe large tensors fail with a
// *LimitError, so that a few bytes from a peer cannot make a call use more memory than the limit.
// Calls that need no memory succeed whatever the shape is.
func TestLimits(t *testing.T) {
	table := aten.Builtin(&ops.Engine{MaxBytes: 1 << 10})
	one := tensor.Scalar(float32(1))
	huge := must(one.Expand(1<<20, 1<<20))
	tall := must(tensor.Zeros(tensor.F32, 1<<40, 0))
	sparse := must(tensor.NewSparse(must(tensor.Zeros(tensor.I64, 1, 0)), must(tensor.Zeros(tensor.F32, 0)), 1<<40))
	wide := must(tensor.Zeros(tensor.F32, 100, 1))
	for _, c := range []struct {
		name string
		args values
	}{
		{"aten::zeros", values{[]int{1 << 20}}},
		{"aten::ones", values{[]int{1 << 40, 1 << 10}}},
		{"aten::full", values{[]int{257}, 1.0}},
		{"aten::eye", values{1 << 30}},
		{"aten::arange", values{1 << 62}},
		{"aten::arange", values{1e300}},
		{"aten::arange.start_step", values{maxInt64, -maxInt64, -1}},
		{"aten::zeros_like", values{huge}},
		{"aten::add", values{wide, must(wide.Transpose(0, 1))}},
		{"aten::add", values{huge, one}},
		{"aten::exp", values{huge}},
		{"aten::clone", values{huge}},
		{"aten::reshape", values{must(must(tensorOf(t, 1.0, 2).Expand(1<<20, 2)).Transpose(0, 1)), []int{1 << 21}}},
		{"aten::expand", values{one, []int{1 << 40}}},
		{"aten::sum", values{huge}},
		{"aten::sum", values{tall, 1}},
		{"aten::max", values{huge}},
		{"aten::equal", values{huge, huge}},
		{"aten::nonzero", values{huge}},
		{"aten::softmax", values{huge, 0}},
		{"aten::to", values{huge, "f64"}},
		{"aten::split", values{tall, 1}},
		{"aten::cat", values{[]*tensor.Tensor{wide, wide, wide}}},
		{"aten::stack", values{[]*tensor.Tensor{wide, wide, wide}}},
		{"aten::matmul", values{wide, must(wide.Transpose(0, 1))}},
		{"aten::mm", values{huge, huge}},
		{"aten::mm", values{must(tensor.Zeros(tensor.F32, 1<<30, 0)), must(tensor.Zeros(tensor.F32, 0, 1<<30))}},
		{"aten::to_dense", values{sparse}},
		{"aten::add", values{must(one.Expand(1 << 40)), sparse}},
	} {
		_, err := table.Call(t.Context(), c.name, c.args, nil)
		var limit *ops.LimitError
		require.ErrorAs(t, err, &limit, c.name)
		require.Equal(t, 1<<10, limit.Limit)
		require.Greater(t, limit.Bytes, 1<<10, c.name)
	}
	_, err := table.Call(t.Context(), "aten::cat", values{[]*tensor.Tensor{tall, must(tall.Transpose(0, 1)), tall}}, nil)
	require.Error(t, err)
	require.Equal(t, false, call(t, table, "aten::equal", huge, one))
	for _, name := range []string{"aten::neg", "aten::t", "aten::relu"} { // no elements to compute, whatever the shape
		require.Equal(t, 0, call(t, table, name, tall).(*tensor.Tensor).Len())
	}
	requireData(t, call(t, table, "aten::sum", tall), float32(0))
}

const maxInt64 = int64(1)<<62 - 1 + int64(1)<<62

// TestMemoryOfArguments checks that operators accept a tensor in read-only and unaligned memory and
// do not modify it; aten::t returns a view of its storage and aten::clone a copy.
func TestMemoryOfArguments(t *testing.T) {
	table := aten.Default()
	p := make([]byte, 1+4*4)
	odd := must(tensor.FromBuffer(device.Bytes(p[1:]), tensor.F32, 2, 2))
	x := must(tensor.FromSlice([]float32{1, 2, 3, 4}, 2, 2))
	require.NoError(t, odd.CopyFrom(x))
	odd.Storage().SetReadOnly(true)
	requireData(t, call(t, table, "aten::add", odd, odd), float32(2), 4, 6, 8)
	requireData(t, call(t, table, "aten::mm", odd, must(odd.Transpose(0, 1))), float32(5), 11, 11, 25)
	require.True(t, must(tensor.Equal(x, odd)))
	view := call(t, table, "aten::t", odd).(*tensor.Tensor)
	require.Same(t, odd.Storage(), view.Storage())
	require.NotSame(t, odd.Storage(), call(t, table, "aten::clone", odd).(*tensor.Tensor).Storage())
}

// TestAllocations checks that a call of aten::add with two small tensors makes at most 7
// allocations, or 8 if the build tag for invariants is set.
func TestAllocations(t *testing.T) {
	table := aten.Default()
	x := must(tensor.Zeros(tensor.F32, 2, 2))
	args := values{x, x}
	ctx := t.Context()
	n := testing.AllocsPerRun(1000, func() {
		if _, err := table.Call(ctx, "aten::add", args, nil); err != nil {
			t.Error(err)
		}
	})
	limit := 7.0
	if invariants.Enabled {
		limit++ // the tag overwrites released memory
	}
	require.LessOrEqual(t, n, limit)
}

// TestIndicesChangedAfterCheck checks that operators on a sparse tensor fail with a
// *tensor.IndexError if its indices became invalid after it was created, as they may if their
// memory belongs to another process.
func TestIndicesChangedAfterCheck(t *testing.T) {
	at := must(tensor.Zeros(tensor.I64, 2, 1))
	s := must(tensor.NewSparse(at, tensorOf(t, 1.0), 3, 3))
	for _, bad := range []int64{3, -1, maxInt64} {
		for dim := range 2 {
			require.NoError(t, tensor.Fill(at, int64(0)))
			require.NoError(t, tensor.Set(at, bad, dim, 0))
			for _, name := range []string{"aten::mm", "aten::add", "aten::to_dense"} {
				args := values{s, must(tensor.Zeros(tensor.F64, 3, 3))}
				switch name {
				case "aten::add":
					args[0], args[1] = args[1], args[0]
				case "aten::to_dense":
					args = args[:1]
				}
				_, err := table.Call(t.Context(), name, args, nil)
				var index *tensor.IndexError
				require.ErrorAs(t, err, &index, name)
			}
		}
	}
}
