// Package tensor provides the data that pipes move: typed, strided views of memory on some device. It
// has no operators and no graph.
//
// # Types
//
// A [DType] is the type of an element. A [Storage] is a region of memory on a device. A [Tensor] is a
// view of a Storage: dtype, shape, strides and offset, the last two counted in elements. Several
// tensors may view one Storage; Slice, Transpose, Expand and similar methods create such views and
// never copy. A [Sparse] tensor lists the positions that are not zero.
//
// Elements are in little-endian order in memory, as on every machine with which tensors are exchanged.
//
// # Lifetime of memory
//
// [Zeros] and [Heap] use the Go heap, where every slice keeps its memory alive. An [Allocator] such as
// [Pool] may return memory that the garbage collector does not manage. Such memory returns to the pool
// when its Storage becomes unreachable. A Storage is kept reachable by
//
//   - a Tensor, and every view made from it;
//   - a device.Buffer from [Tensor.Buffer] or [Storage.Buffer], and every slice
//     of that Buffer;
//   - not by a Go slice from [Data], [MutableData] or [Storage.Bytes]: its user
//     must call runtime.KeepAlive on the Tensor or Storage after the last use.
//
// [Storage.Release] returns the memory early, for all views at once. It is an optimization and never
// required. Methods fail with [ErrReleased] afterwards; in builds with the tag "invariants" they panic
// instead, and released memory is overwritten so that the use of a stale slice shows.
//
// # Concurrency
//
// The description of a Tensor never changes, so its methods may be called from any goroutine. Elements
// are plain memory: the caller must order readers and writers of the same elements.
package tensor
