package native

import "cmp"

// MaxParts bounds the payloads of a message and its tensors: the place of a
// part has 16 bits in the id of its transfer.
const MaxParts = 1 << 16

// MostInline is how many bytes of its parts a message has inside at most.
const MostInline = 2 << 20

// maxKind bounds a device kind in bytes: its length has one byte.
const maxKind = 1<<8 - 1

// Limits bound what a peer may make this process hold. A field that is 0
// stands for its default.
type Limits struct {
	// Descriptor is the size in bytes of the body of a MESSAGE up to its inline
	// bytes, by default 4 MiB. A decoded Message takes at most 5 times that,
	// beside the body, into which it points.
	Descriptor int

	// Inline is the size in bytes of all inline parts of a message together, by
	// default MostInline.
	Inline int

	// Payloads and Tensors are their numbers in a message, by default and at
	// most MaxParts.
	Payloads int
	Tensors  int

	// Kind is the size in bytes of a device kind, by default 64 and at most
	// 255.
	Kind int
}

// WithDefaults returns l with its default in place of each 0.
func (l Limits) WithDefaults() Limits {
	return Limits{
		Descriptor: cmp.Or(l.Descriptor, 4<<20),
		Inline:     cmp.Or(l.Inline, MostInline),
		Payloads:   min(cmp.Or(l.Payloads, MaxParts), MaxParts),
		Tensors:    min(cmp.Or(l.Tensors, MaxParts), MaxParts),
		Kind:       min(cmp.Or(l.Kind, 64), maxKind),
	}
}

// message is the largest body of a MESSAGE.
func (l Limits) message() uint64 { return uint64(l.Descriptor) + uint64(l.Inline) }

// targets is the largest body of TARGETS.
func (l Limits) targets() uint64 {
	return targetsFixed + uint64(l.Tensors)*uint64(targetFixed+l.Kind)
}
