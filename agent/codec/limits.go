package codec

import "cmp"

// Limits bound what a message may do to the process that decodes it. A field of
// 0 takes the default.
type Limits struct {
	// Depth bounds how deep values may be nested: each pointer, slice, map,
	// interface and wrapped error counts one. It is a bound of what is encoded
	// too. Default 1000.
	Depth int

	// Bytes bounds the message without its tensors. Default 1 GiB.
	Bytes int

	// Memory bounds the memory in bytes that the decoded values take, tensors
	// aside. Whatever it is, a message gets no more than 1 MiB and 64 times its
	// own size. Default 1 GiB.
	Memory int

	// Elements bounds the elements of all slices and maps together. Default
	// 1<<28.
	Elements int

	// ExpandedBytes bounds by how much all tensors together may seem larger than
	// the memory that came for them, because of strides that use it more than
	// once, as Expand makes them. Default 1 GiB.
	ExpandedBytes int
}

func (l Limits) withDefaults() Limits {
	l.Depth = cmp.Or(l.Depth, 1000)
	l.Bytes = cmp.Or(l.Bytes, 1<<30)
	l.Memory = cmp.Or(l.Memory, 1<<30)
	l.Elements = cmp.Or(l.Elements, 1<<28)
	l.ExpandedBytes = cmp.Or(l.ExpandedBytes, 1<<30)
	return l
}

const (
	// slack is the memory that even the smallest message may take.
	slack = 1 << 20

	// factor is how much larger than their bytes values may be: an empty string
	// of one byte takes 16 bytes of memory, a nil slice 24, and maps have room
	// to grow.
	factor = 64
)
