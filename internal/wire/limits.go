package wire

import "cmp"

// Limits bound what a peer may make this process hold. A field that is 0
// stands for its default.
type Limits struct {
	// Frame is the size in bytes of one encoded message, by default 4 MiB.
	// Whoever reads frames checks it before allocating; decoding checks it
	// again. Payloads and tensors are not meant. A decoded Brochure or
	// BrochureAnswer may take 40 times the size of its frame, other messages
	// 7 times.
	Frame int64

	// Payloads is the number of payloads in a message, by default 65536.
	Payloads int

	// Tensors is the number of tensors in a message, by default 65536.
	Tensors int

	// Entries is the number of entries in each map or list of the handshake:
	// transports, channels, devices, pairs of devices, connections, lanes. By
	// default 4096.
	Entries int

	// Text is the size in bytes of each name, address and descriptor text, by
	// default 4096. Metadata is not meant, only Frame bounds it.
	Text int

	// Kind is the size in bytes of a device kind, by default 64.
	Kind int
}

// WithDefaults returns l with its default in place of each 0.
func (l Limits) WithDefaults() Limits {
	return Limits{
		Frame:    cmp.Or(l.Frame, 4<<20),
		Payloads: cmp.Or(l.Payloads, 1<<16),
		Tensors:  cmp.Or(l.Tensors, 1<<16),
		Entries:  cmp.Or(l.Entries, 4096),
		Text:     cmp.Or(l.Text, 4096),
		Kind:     cmp.Or(l.Kind, 64),
	}
}
