package pipe

import (
	"cmp"
	"fmt"
	"math"

	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
)

// Limits bound what a message, a peer or all pipes of a context together may
// take. They are checked before memory is allocated, for messages of this end
// as for those of the peer. A field of 0 takes the default.
type Limits struct {
	// DescriptorBytes bounds the description of one message as it travels: all
	// its metadata, and some 20 bytes per payload and tensor. Default 4 MiB.
	DescriptorBytes int

	// Payloads and Tensors bound their number in one message. Default 65536
	// each.
	Payloads int
	Tensors  int

	// PayloadBytes and TensorBytes bound each one's size. Default 4 GiB and
	// 64 GiB. In the compatible dialect the transport may carry less: ErrLimit.
	PayloadBytes int
	TensorBytes  int

	// MessageBytes bounds the sum of all payloads and tensors of a message.
	// A receiver that allocates whatever a description says needs no other
	// protection from its peers. Default 64 GiB.
	MessageBytes int

	// PipeBytesInFlight and ContextBytesInFlight bound the bytes of messages
	// that were given to Write and have not left, for one pipe and for all
	// pipes of the context. A writer waits while they are exceeded. A message
	// larger than the bound of the pipe passes when it is alone; of the context's,
	// no message takes more than half. What is to be compressed counts twice until
	// that is done, and then with the memory that it takes. Default 1 GiB and
	// 4 GiB.
	PipeBytesInFlight    int
	ContextBytesInFlight int

	// ReadAheadMessages and ReadAheadBytes bound what a pipe takes in before
	// the application asks for it: descriptors and small payloads. Default 16
	// messages and 256 KiB.
	ReadAheadMessages int
	ReadAheadBytes    int

	// ContextWindowBytes bounds what peers may have on their way to, or unread
	// at, all native pipes of the context together, beyond 256 KiB per stream:
	// what the windows of their sessions may grow by. A pipe that gets nothing
	// of it still works, at 256 KiB per round trip. Through shared memory it
	// bounds what this end may have on its way: what the rings that it writes to
	// may grow by, each by 2 MiB, beyond 656 KiB for the messages of a pipe, as
	// much for its large data if those use a ring, and 84 KiB for each other
	// stream. A ring begins with 16 or 4 KiB, and returns to that size, and its
	// bytes to the budget, after 4 to 8 s without writes. Default 256 MiB.
	ContextWindowBytes int

	// HandshakesInProgress bounds the accepted connections of a context that
	// have not said yet what they are for, and as many pipes that are being
	// opened; further ones are closed at once, but for those that the pipes
	// being opened expect. Default 1024.
	HandshakesInProgress int

	// HandshakeBytes bounds each message of the handshake. Default 256 KiB.
	HandshakeBytes int

	// UnadmittedBytes bounds the memory that peers take which dialled this end and
	// which the application has not admitted, see [Pipe.Admit], all together: frames of
	// handshakes, messages and control streams, whole or in part, bytes in sessions,
	// and copies of messages that the peer does not take in. When it is used up the
	// peers that hold most are disconnected, with an error that matches ErrLimit; until
	// their memory is free, calls on other pipes that are not admitted may wait. It
	// does not count what a pipe costs without any byte, some 100 KiB of buffers and
	// stacks, and 64 KiB of TLS for each connection of the compatible dialect; nor
	// rings in shared memory, nor memory of the application. Default 0, which is no
	// bound.
	UnadmittedBytes int

	// AcceptBacklog bounds the open pipes that wait for Accept. Default 128.
	AcceptBacklog int
}

// maxInt keeps the defaults within an int on 32-bit machines.
func maxInt(n int64) int { return int(min(n, math.MaxInt)) }

// check refuses limits that bound nothing.
func (l Limits) check() error {
	for name, n := range map[string]int{
		"DescriptorBytes":      l.DescriptorBytes,
		"Payloads":             l.Payloads,
		"Tensors":              l.Tensors,
		"PayloadBytes":         l.PayloadBytes,
		"TensorBytes":          l.TensorBytes,
		"MessageBytes":         l.MessageBytes,
		"PipeBytesInFlight":    l.PipeBytesInFlight,
		"ContextBytesInFlight": l.ContextBytesInFlight,
		"ReadAheadMessages":    l.ReadAheadMessages,
		"ReadAheadBytes":       l.ReadAheadBytes,
		"ContextWindowBytes":   l.ContextWindowBytes,
		"HandshakesInProgress": l.HandshakesInProgress,
		"HandshakeBytes":       l.HandshakeBytes,
		"UnadmittedBytes":      l.UnadmittedBytes,
		"AcceptBacklog":        l.AcceptBacklog,
	} {
		if n < 0 {
			return fmt.Errorf("%w: Limits.%s is %d", ErrOptions, name, n)
		}
	}
	return nil
}

func (l Limits) withDefaults() Limits {
	l.DescriptorBytes = cmp.Or(l.DescriptorBytes, 4<<20)
	l.Payloads = cmp.Or(l.Payloads, 1<<16)
	l.Tensors = cmp.Or(l.Tensors, 1<<16)
	l.PayloadBytes = cmp.Or(l.PayloadBytes, maxInt(4<<30))
	l.TensorBytes = cmp.Or(l.TensorBytes, maxInt(64<<30))
	l.MessageBytes = cmp.Or(l.MessageBytes, maxInt(64<<30))
	l.PipeBytesInFlight = cmp.Or(l.PipeBytesInFlight, 1<<30)
	l.ContextBytesInFlight = cmp.Or(l.ContextBytesInFlight, maxInt(4<<30))
	l.ReadAheadMessages = cmp.Or(l.ReadAheadMessages, 16)
	l.ReadAheadBytes = cmp.Or(l.ReadAheadBytes, 256<<10)
	l.ContextWindowBytes = cmp.Or(l.ContextWindowBytes, 256<<20)
	l.HandshakesInProgress = cmp.Or(l.HandshakesInProgress, 1024)
	l.HandshakeBytes = cmp.Or(l.HandshakeBytes, 256<<10)
	l.AcceptBacklog = cmp.Or(l.AcceptBacklog, 128)
	return l
}

// wire returns the limits for decoding.
func (l Limits) wire() wire.Limits {
	return wire.Limits{
		Frame:    int64(max(l.DescriptorBytes, l.HandshakeBytes)),
		Payloads: l.Payloads,
		Tensors:  l.Tensors,
	}
}

// native returns the limits for decoding the frames of the native dialect.
func (l Limits) native() native.Limits {
	return native.Limits{
		Descriptor: l.DescriptorBytes,
		Payloads:   l.Payloads,
		Tensors:    l.Tensors,
	}.WithDefaults()
}
