package agent

import (
	"encoding/binary"
	"fmt"
	"time"
)

// A message between agents has a head, which is the metadata of the pipe's message, and a
// body, encoded by package codec. A small body follows the head in the metadata, a larger
// one is the payload of the message. The tensors of the body are those of the message.
//
//	byte    Kind
//	byte    flags
//	uvarint number of the call, among the calls that this end of the pipe made
//
// The head of a request continues with
//
//	uvarint time until the call times out, in microseconds; 0 for no limit
//	text    type of the message, empty for the call of a function
//	text    name of the function, or a name that the type defines
//
// and that of a cancellation with the reason as a text. A text is its length as a uvarint,
// followed by its bytes.

const (
	flagPayload = 1 // the body is the payload of the message
	flagStack   = 2 // of a request: a handler that panics replies with its stack

	// flagNested marks a request that was made by a handler, or by an interceptor of a
	// reply. It is admitted beyond the limit: requests that were admitted may wait for it.
	flagNested = 4
)

const (
	flagsAt = 1       // index of the flags in a message
	maxName = 1 << 10 // bytes of a type or a name

	// maxTimeout is the longest timeout that is sent; longer ones are cut to it.
	maxTimeout = 100 * 365 * 24 * time.Hour
)

// Kind is the kind of a message of a call: its first byte.
type Kind byte

// The kinds of messages. Interceptors see all but KindCancel, Config.FaultHook sees all.
const (
	KindRequest Kind = 1 + iota // from the caller
	KindReply                   // to the caller: the result
	KindFailure                 // to the caller: an error in place of a result
	KindCancel                  // from the caller: no goroutine waits for the reply; carries no value
)

func (k Kind) String() string {
	switch k {
	case KindRequest:
		return "request"
	case KindReply:
		return "reply"
	case KindFailure:
		return "failure"
	case KindCancel:
		return "cancel"
	}
	return fmt.Sprintf("kind %d", byte(k))
}

// head is the head of a message. Its slices lie in the message.
type head struct {
	kind  Kind
	flags byte
	id    uint64

	timeout time.Duration // request
	typ     []byte        // request
	name    []byte        // request
	text    []byte        // cancellation

	body []byte // what follows the head in the metadata
}

// appendHead appends the head of a reply, or the part that all heads have in common, to dst and
// returns the extended slice.
func appendHead(dst []byte, k Kind, flags byte, id uint64) []byte {
	return binary.AppendUvarint(append(dst, byte(k), flags), id)
}

// appendRequest appends the head of a request to dst and returns the extended slice. The timeout
// is rounded up to microseconds; 0 or less stands for none. typ and name must have at most
// maxName bytes.
func appendRequest(dst []byte, flags byte, id uint64, timeout time.Duration, typ, name string) []byte {
	us := uint64(0)
	if timeout > 0 {
		us = uint64((timeout-1)/time.Microsecond + 1)
	}
	dst = appendHead(dst, KindRequest, flags, id)
	dst = binary.AppendUvarint(dst, us)
	return appendText(appendText(dst, typ), name)
}

func appendText(dst []byte, text string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(text))), text...)
}

// parseHead decodes the head of a message. The slices of h lie in message. The error
// matches ErrProtocol.
func parseHead(message []byte) (h head, err error) {
	if len(message) < 3 {
		return h, fmt.Errorf("%w: message of %d bytes", ErrProtocol, len(message))
	}
	h.kind, h.flags = Kind(message[0]), message[flagsAt]
	r := headReader{remaining: message[2:]}
	h.id = r.uvarint()
	switch h.kind {
	case KindRequest:
		h.timeout = time.Duration(min(r.uvarint(), uint64(maxTimeout/time.Microsecond))) * time.Microsecond
		h.typ, h.name = r.text(), r.text()
	case KindCancel:
		h.text = r.text()
	case KindReply, KindFailure:
	default:
		return h, fmt.Errorf("%w: %v", ErrProtocol, h.kind)
	}
	h.body = r.remaining
	if r.invalid {
		return h, fmt.Errorf("%w: %v that ends early or holds a text of more than %d bytes", ErrProtocol, h.kind, maxName)
	}
	return h, nil
}

// headReader decodes the fields of a head. It sets invalid, and returns zero values from
// then on, once a field is cut off or too long.
type headReader struct {
	remaining []byte
	invalid   bool
}

func (r *headReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.remaining)
	if n <= 0 {
		r.invalid, r.remaining = true, nil
		return 0
	}
	r.remaining = r.remaining[n:]
	return v
}

func (r *headReader) text() []byte {
	n := r.uvarint()
	if n > uint64(len(r.remaining)) || n > maxName {
		r.invalid, r.remaining = true, nil
		return nil
	}
	text := r.remaining[:n]
	r.remaining = r.remaining[n:]
	return text
}
