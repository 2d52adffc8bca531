// Package ops has the operators on tensors, as methods of an [Engine]: arithmetic, comparisons,
// reductions, products of matrices, views, sparse tensors, losses, embeddings, and the gradients of
// those whose gradient is not a composition of others.
//
//	e := &ops.Engine{}
//	sum, err := e.Add(ctx, x, y, ops.Int(1)) // x + 1*y, broadcast
//	err = e.AddInPlace(ctx, w, grad, ops.Float(-0.1))
//
// An engine has the allocator of the results, the product of matrices, and the kernels that compute
// on devices. There is no default engine and no global state.
//
// # Results
//
// An operator does not modify its operands, unless its name ends in InPlace. The result is new
// memory from [Engine.Alloc], which need not be zeroed, or, for operators on shapes such as
// [Engine.Reshape], a view of the operand. Cast, Contiguous and SumTo return the operand itself if
// there is nothing to do. Operands may have any strides and may be read-only; where elements of an
// element-wise operator are adjacent, or repeated by broadcasting, they are read where they are.
//
// # Dtypes
//
// Operands of different dtypes are cast to the one to which PyTorch promotes them, with F32 as the
// default dtype: see [ResultType], and [Number] for numbers. Half precision is computed in float32;
// sums of floating point numbers are computed in float64. Error texts are those of PyTorch where it
// has one.
//
// # Arguments from peers
//
// For any arguments an operator returns a result or an error: it does not panic, and does not trust
// sizes. With [Engine.MaxBytes] no tensor is larger than the limit, and no operator visits more
// elements of an expanded view than such a tensor has.
//
// # Devices
//
// Tensors that are not on the host are computed by the [Kernels] of their kind, in the order of
// their streams; new tensors are valid on the stream that ctx names (device.StreamFrom). Operators
// for which there are no kernels return a *tensor.DeviceError. Products of matrices end with the
// error of ctx if it ends.
package ops
