// Package wire encodes and decodes the messages of TensorPipe's own dialect. Each message is a plain
// struct with an Append method and a Decode function, in the encoding of package nop, and is sent as
// one frame.
//
// A pipe is opened as follows; the client is the end that dials:
//
//	client to server, first connection     Packet: SpontaneousConnection
//	client to server, same connection      Brochure: what the client offers
//	server to client, same connection      BrochureAnswer: what they will use
//	client to server, each new connection  Packet: RequestedConnection
//
// The answer has an id for every connection that the client has to open, and RequestedConnection
// identifies a connection to the server by that id. Then messages are sent in both directions. Each is
// a [Descriptor] on the descriptor connection, followed by its payloads as bare frames; if it leaves
// target devices open the receiver names them in a [DescriptorReply] on the reply connection. Tensors
// are sent on the connections of channels, whose messages are here too: [CMADescriptor],
// [XTHDescriptor], [CUDAIPCDescriptor] and [MPTHello].
//
// # Decoding
//
// Decoding accepts what libnop accepts: integers in any width, map entries in any order, and the first
// of several entries with equal keys. Otherwise it is strict: the number of members must be exact,
// nothing may follow the message, and a device needs a kind and an index that is not negative. An empty
// map decodes to nil. Decoding allocates memory only in proportion to the received bytes, within
// [Limits]. Errors are of type [*Error], except those of [DecodeControl], [ParseMarker] and
// [BrochureAnswer.Sizes].
//
// # Encoding
//
// Append writes every integer in its shortest form and map entries sorted by key. TensorPipe writes
// maps in the order of its hash table, so its encoding of an equal message with several entries may
// differ.
package wire

import (
	"cmp"
	"errors"
)

// ErrLimit matches errors about messages that are well-formed but exceed [Limits]. If the peer is
// trusted, raise the limit.
var ErrLimit = errors.New("larger than the limit")

// Error reports which member of which message could not be decoded. If it does not match [ErrLimit] the
// peer broke the protocol, and the connection cannot be used any more.
type Error struct {
	Message string // the message that was expected, as in "Brochure"
	Field   string // the member being read, empty for the message as a whole
	Err     error  // a *nop.Error, or an error that matches ErrLimit
}

func (e *Error) Error() string {
	if e.Field == "" {
		return "wire: " + e.Message + ": " + e.Err.Error()
	}
	return "wire: " + e.Message + "." + e.Field + ": " + e.Err.Error()
}

// Unwrap returns e.Err, the cause, for errors.Is and errors.As.
func (e *Error) Unwrap() error { return e.Err }

// Limits bound the memory that a peer can make this process use. 0 stands for the default of a field.
type Limits struct {
	// Frame is the maximum size in bytes of one encoded message, by default 4 MiB; payloads and tensors
	// do not count. A reader of frames checks it before it allocates, and decoding checks it again. A
	// decoded Brochure or BrochureAnswer may take 40 times the size of its frame, other messages 7
	// times.
	Frame int64

	// Payloads is the maximum number of payloads in a message, by default 65536.
	Payloads int

	// Tensors is the maximum number of tensors in a message, by default 65536.
	Tensors int

	// Entries is the maximum number of entries in each map or list of the handshake: transports,
	// channels, devices, pairs of devices, connections, lanes. The default is 4096.
	Entries int

	// Text is the maximum size in bytes of each name, address and descriptor text, by default 4096. It
	// does not apply to metadata, which only Frame bounds.
	Text int

	// Kind is the maximum size in bytes of a device kind, by default 64.
	Kind int
}

// WithDefaults returns a copy of l in which each field that is 0 has its default.
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
