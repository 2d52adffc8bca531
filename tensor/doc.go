// Package tensor holds the data that the pipe moves: typed, strided views of
// memory that lives on some device. It has no operators and no graph.
//
// # The parts
//
// A [DType] says what one element is. A [Storage] is a piece of memory on a
// device. A [Tensor] is a view of a Storage: dtype, shape, strides and offset,
// the last two counted in elements. Several tensors may view one Storage;
// Slice, Transpose, Expand and their kin make such views and never copy. A
// [Sparse] tensor lists the places that are not zero.
//
// Elements lie in memory in little-endian order, that of every machine that
// tensors are exchanged with.
//
// # Who keeps what alive
//
// [Zeros] and [Heap] use the Go heap, where every slice keeps its memory
// alive. An [Allocator] such as [Pool] may hand out memory that the garbage
// collector does not see. Such memory goes back to the pool when its Storage
// becomes unreachable, and what holds the Storage is:
//
//   - a Tensor, and every view made from it;
//   - a device.Buffer from [Tensor.Buffer] or [Storage.Buffer], and every
//     slice of that Buffer;
//   - not a Go slice from [Data], [MutableData] or [Storage.Bytes]: whoever
//     uses one calls runtime.KeepAlive on the Tensor or Storage behind the
//     last use.
//
// [Storage.Release] gives the memory back early, for all views at once. It is
// an optimisation and never needed. Methods fail with [ErrReleased]
// afterwards; in builds with the tag "invariants" they panic instead, and
// released memory is overwritten so that a stale slice shows.
//
// # Concurrency
//
// The description of a Tensor never changes, so its methods may be called from
// any goroutine. Elements are plain memory: readers and writers of the same
// elements must be ordered by the caller.
package tensor
