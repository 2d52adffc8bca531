package agent

import (
	"encoding/binary"
	"fmt"
	"time"
)

// A message between agents has a head, which is the metadata of the pipe's message,
// and a body, made by package codec. A small body lies behind the head, a larger one
// is the payload of the message; the tensors of the body are those of the message.
//
//	byte    what it is
//	byte    flags
//	uvarint number of the call, of those that this end of the pipe began
//
// A request goes on with
//
//	uvarint microseconds that are left for it, 0 where there is no limit
//	text    type, empty for the call of a function
//	text    name of the function, or what the type says
//
// and a cancellation with the reason as text. A text is a uvarint and as many bytes.

type kind byte

const (
	request kind = 1 + iota // of the one who calls
	reply                   // of the one who was called: the result
	failure                 // of the same: an error
	cancel                  // of the one who calls: nobody waits any more
)

func (k kind) String() string {
	switch k {
	case request:
		return "request"
	case reply:
		return "reply"
	case failure:
		return "failure"
	case cancel:
		return "cancel"
	}
	return fmt.Sprintf("kind %d", byte(k))
}

// flagPayload says that the body is the payload of the message.
const flagPayload = 1

// wantStack is a request's wish to get the stack of a handler that fails.
const wantStack = 2

// nested says that the caller is itself a handler, or an interceptor where answers are
// read: such a call is let in beyond the limit, since calls that have been let in may wait
// for it.
const nested = 4

type head struct {
	kind  kind
	flags byte
	id    uint64

	left time.Duration // request
	typ  []byte        // request; these lie in the message
	name []byte        // request
	text []byte        // cancel

	body []byte // the rest
}

const maxName = 1 << 10 // bytes of a type or a name

// flagsAt is where in a message the flags are.
const flagsAt = 1

// appendHead appends the head of a message. The body follows.
func appendHead(dst []byte, k kind, flags byte, id uint64) []byte {
	return binary.AppendUvarint(append(dst, byte(k), flags), id)
}

func appendRequest(dst []byte, flags byte, id uint64, left time.Duration, typ, name string) []byte {
	dst = appendHead(dst, request, flags, id)
	dst = binary.AppendUvarint(dst, micros(left))
	return appendText(appendText(dst, typ), name)
}

// micros is a time that is left in microseconds, the last of which counts as a whole
// one; 0 is none.
func micros(left time.Duration) uint64 {
	if left <= 0 {
		return 0
	}
	return uint64((left-1)/time.Microsecond + 1)
}

func appendText(dst []byte, text string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(text))), text...)
}

// parseHead reads what appendHead and appendRequest write. What it returns lies in
// message. The error matches ErrProtocol.
func parseHead(message []byte) (h head, err error) {
	if len(message) < 3 {
		return h, fmt.Errorf("%w: message of %d bytes", ErrProtocol, len(message))
	}
	h.kind, h.flags = kind(message[0]), message[flagsAt]
	c := cut{rest: message[2:]}
	h.id = c.uvarint()
	switch h.kind {
	case request:
		h.left = time.Duration(min(c.uvarint(), uint64(maxLeft/time.Microsecond))) * time.Microsecond
		h.typ, h.name = c.text(), c.text()
	case cancel:
		h.text = c.text()
	case reply, failure:
	default:
		return h, fmt.Errorf("%w: %v", ErrProtocol, h.kind)
	}
	h.body = c.rest
	if c.bad {
		return h, fmt.Errorf("%w: %v that ends early or holds a text of more than %d bytes", ErrProtocol, h.kind, maxName)
	}
	return h, nil
}

// maxLeft is the longest limit that travels; more is as good as none.
const maxLeft = 100 * 365 * 24 * time.Hour

// cut takes a message apart.
type cut struct {
	rest []byte
	bad  bool
}

func (c *cut) uvarint() uint64 {
	v, n := binary.Uvarint(c.rest)
	if n <= 0 {
		c.bad, c.rest = true, nil
		return 0
	}
	c.rest = c.rest[n:]
	return v
}

func (c *cut) text() []byte {
	n := c.uvarint()
	if n > uint64(len(c.rest)) || n > maxName {
		c.bad, c.rest = true, nil
		return nil
	}
	text := c.rest[:n]
	c.rest = c.rest[n:]
	return text
}
