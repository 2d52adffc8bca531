// Package aten has tensor operators that are called by the names that PyTorch
// gives them, as in "aten::add", and a table in which they are found and can be
// replaced.
//
//	table := aten.Default()
//	out, err := table.Call(ctx, "aten::add", []aten.Value{x, y}, nil)
//	sum := out[0].(*tensor.Tensor)
//
// # Operators
//
// An [Operator] is a [Schema] and a [Kernel]. The schema is a text in PyTorch's
// grammar:
//
//	aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
//
// An operator may have several overloads, told apart by what follows the dot.
// A call names all of them ("aten::add", and the first that fits the arguments
// is taken), one of them ("aten::add.Tensor"), or one by its whole schema. The
// schemas of the operators in [Default] are PyTorch's own.
//
// # What kernels promise
//
// The kernels of this package never change their arguments. A result is new
// memory on the Go heap, except where the schema says Tensor(a): it may then
// be a view of the argument or the argument itself. Arguments may have any
// strides, and lie in memory that is read-only; they must be on the host.
// Where arguments of several dtypes meet in arithmetic and comparisons, the
// result has the dtype that PyTorch gives it with float32 as its default dtype.
// Sums of float32 are made in float64. Half precision is computed in float32.
//
// Kernels believe nothing about sizes: see [Limits]. Whatever arguments come,
// there is a result or an error that names the operator.
//
// # Concurrency
//
// A [Table] is built by one goroutine and must not change any more once it is
// given to somebody; from then on any number of goroutines may call it.
package aten
