// Package aten provides tensor operators under the names of PyTorch, such as "aten::add",
// and a table in which an application can find and replace them.
//
//	table := aten.Default()
//	out, err := table.Call(ctx, "aten::add", []aten.Value{x, y}, nil)
//	sum := out[0].(*tensor.Tensor)
//
// # Operators
//
// An [Operator] is a [Schema] and a [Kernel]. A schema is text in PyTorch's grammar:
//
//	aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
//
// An operator may have several overloads, which differ in the part after the dot. A call names
// an operator ("aten::add"; the first overload that fits the arguments is used), an overload
// ("aten::add.Tensor"), or an overload by its complete schema. The schemas in [Default] are
// those of PyTorch.
//
// # Kernels
//
// The kernels are those of package tensor/ops, computed by the engine that [Builtin] takes. They
// do not modify their arguments. A result is new memory of the engine, unless the schema has
// Tensor(a): it may then be a view of the argument, or the argument itself. The same holds for
// aten::to_dense of a dense tensor. A program that knows its operators when it is compiled calls the
// typed methods of [ops.Engine] instead.
//
// Kernels do not trust sizes, see [ops.Engine]. For arbitrary arguments they return a result or a
// [*KernelError] with the name of the operator.
//
// # Concurrency
//
// A [Table] is not safe for concurrent modification. Once it is not modified any more, any
// number of goroutines may call it.
package aten
