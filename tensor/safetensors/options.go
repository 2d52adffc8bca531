package safetensors

import "github.com/tensorpipe-go/tensorpipe/tensor"

// maxHeader is the largest header that other implementations read.
const maxHeader = 100_000_000

// Options bound what is read, and say where tensors go. The zero value is the
// default: headers up to 100 MB, as other implementations, and memory from the
// Go heap.
type Options struct {
	// HeaderLimit bounds the bytes of the header; 0 is 100 MB.
	HeaderLimit int

	// TensorLimit bounds the number of tensors; 0 is no limit but that of the
	// header.
	TensorLimit int

	// RankLimit bounds the dimensions of a tensor; 0 is tensor.MaxRank, and
	// more is not possible.
	RankLimit int

	// ByteLimit bounds the bytes of all tensors together; 0 is no limit.
	ByteLimit int

	// Allocator gives the memory of tensors; nil is the Go heap.
	Allocator tensor.Allocator
}

// withDefaults fills in what is left open.
func (o Options) withDefaults() Options {
	if o.HeaderLimit <= 0 {
		o.HeaderLimit = maxHeader
	}
	if o.RankLimit <= 0 || o.RankLimit > tensor.MaxRank {
		o.RankLimit = tensor.MaxRank
	}
	if o.Allocator == nil {
		o.Allocator = tensor.Heap{}
	}
	return o
}

// within fails if value is beyond a limit that is set.
func within(what string, value uint64, limit int) error {
	if limit > 0 && value > uint64(limit) {
		return &LimitError{What: what, Value: value, Limit: limit}
	}
	return nil
}
