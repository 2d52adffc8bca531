// Package wire has the messages of agents on a pipe: the handshake, the heads of calls, the keys
// of repeatable requests, and the values of group rounds. They are specified in docs/wire.md.
//
// Values are encoded by package codec, which describes each struct by its name and those of its
// fields. The names are part of the format, so each type states its name in a tag.
package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// ErrProtocol is the error for bytes that are not a valid message. It is agent.ErrProtocol.
var ErrProtocol = errors.New("protocol broken")

// A message of a call has a head, which is the metadata of the pipe's message, and a body,
// encoded by package codec. A small body follows the head in the metadata, a larger one is the
// payload of the message. The tensors of the body are those of the message.
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
// and that of a cancel with the reason as a text. A text is its length as a uvarint, followed by
// its bytes.
//
// A call whose type is one of the Stream constants is a stream: between its request and its reply
// each end may send data. The head of data continues with
//
//	uvarint number of the data among those of the same end and stream, from 0 on
//
// and that of a credit with
//
//	uvarint bytes that the other end may send in addition

// Flags of a head.
const (
	FlagPayload = 1 // the body is the payload of the message
	FlagStack   = 2 // of a request: a handler that panics replies with its stack

	// FlagNested marks a request that was made by a handler, or by an interceptor of a
	// reply. It is admitted beyond the limit: requests that were admitted may wait for it.
	FlagNested = 4

	// FlagBackground marks a request that Shutdown does not wait for, at either end.
	FlagBackground = 32

	FlagCaller = 8  // of data and credit: the sender is the end that made the call
	FlagEnd    = 16 // of data: without a body, and the last of the sender
	FlagBatch  = 64 // of data: the body has several values, each a uvarint of its size and a body
)

const (
	FlagsAt = 1       // index of the flags in a message
	MaxName = 1 << 10 // bytes of a type, a name or a key

	// MaxTimeout is the longest timeout; longer ones are received as this.
	MaxTimeout = 100 * 365 * 24 * time.Hour
)

// Kind is the kind of a message of a call: its first byte.
type Kind byte

// The kinds of messages.
const (
	KindRequest Kind = 1 + iota
	KindReply
	KindFailure
	KindCancel
	KindData
	KindCredit
)

// String returns the name of the kind, such as "reply", or "kind" and the number if k is not one of
// the constants.
func (k Kind) String() string {
	if k >= KindRequest && k <= KindCredit {
		return [...]string{"request", "reply", "failure", "cancel", "data", "credit"}[k-KindRequest]
	}
	return fmt.Sprintf("kind %d", byte(k))
}

// Head is the head of a message. Its slices are part of the message.
type Head struct {
	Kind  Kind
	Flags byte
	ID    uint64

	Timeout time.Duration // of a request; 0 for no limit
	Type    []byte        // of a request
	Name    []byte        // of a request
	Reason  []byte        // of a cancel
	Seq     uint64        // of data
	Credit  uint64        // of a credit, in bytes

	Body []byte // what follows the head in the metadata
}

// AppendReply appends the head of a reply to the call with the number id to dst and returns the
// extended slice. k is KindReply or KindFailure. The flags, at index FlagsAt of the head, are 0.
func AppendReply(dst []byte, k Kind, id uint64) []byte {
	return binary.AppendUvarint(append(dst, byte(k), 0), id)
}

// AppendRequest appends the head of a request to dst and returns the extended slice. id is the
// number of the call. The timeout is rounded up to microseconds; 0 or less stands for no limit.
// typ, the type of the message, and name, that of the function, must have at most MaxName bytes
// each.
func AppendRequest(dst []byte, flags byte, id uint64, timeout time.Duration, typ, name string) []byte {
	us := uint64(0)
	if timeout > 0 {
		us = uint64((timeout-1)/time.Microsecond + 1)
	}
	dst = binary.AppendUvarint(append(dst, byte(KindRequest), flags), id)
	dst = binary.AppendUvarint(dst, us)
	dst = append(binary.AppendUvarint(dst, uint64(len(typ))), typ...)
	return append(binary.AppendUvarint(dst, uint64(len(name))), name...)
}

// AppendCancel appends to dst a message that cancels the call with the number id, and returns the
// extended slice. Of reason, only the first MaxName bytes are sent.
func AppendCancel(dst []byte, id uint64, reason string) []byte {
	reason = reason[:min(len(reason), MaxName)]
	dst = binary.AppendUvarint(append(dst, byte(KindCancel), 0), id)
	return append(binary.AppendUvarint(dst, uint64(len(reason))), reason...)
}

// AppendData appends the head of data of the stream with the number id to dst and returns the
// extended slice. flags is any combination of FlagCaller, FlagEnd and FlagBatch, or 0. seq is the
// number of the data in the stream.
func AppendData(dst []byte, flags byte, id, seq uint64) []byte {
	dst = binary.AppendUvarint(append(dst, byte(KindData), flags), id)
	return binary.AppendUvarint(dst, seq)
}

// AppendCredit appends to dst a message that adds bytes to the credit of the other end of the stream
// with the number id, and returns the extended slice. flags is FlagCaller or 0.
func AppendCredit(dst []byte, flags byte, id, bytes uint64) []byte {
	dst = binary.AppendUvarint(append(dst, byte(KindCredit), flags), id)
	return binary.AppendUvarint(dst, bytes)
}

// ParseHead decodes the head of a message. The slices of the result share memory with message. A
// timeout above MaxTimeout becomes MaxTimeout. The error matches ErrProtocol; the result then has
// no meaning.
func ParseHead(message []byte) (h Head, err error) {
	if len(message) < 3 {
		return h, fmt.Errorf("%w: message of %d bytes", ErrProtocol, len(message))
	}
	h.Kind, h.Flags = Kind(message[0]), message[FlagsAt]
	r := headReader{remaining: message[2:]}
	h.ID = r.uvarint()
	switch h.Kind {
	case KindRequest:
		h.Timeout = time.Duration(min(r.uvarint(), uint64(MaxTimeout/time.Microsecond))) * time.Microsecond
		h.Type, h.Name = r.text(), r.text()
	case KindCancel:
		h.Reason = r.text()
	case KindData:
		h.Seq = r.uvarint()
	case KindCredit:
		h.Credit = r.uvarint()
	case KindReply, KindFailure:
	default:
		return h, fmt.Errorf("%w: %v", ErrProtocol, h.Kind)
	}
	h.Body = r.remaining
	if r.invalid {
		return h, fmt.Errorf("%w: %v that ends early or holds a text of more than %d bytes", ErrProtocol, h.Kind, MaxName)
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
	if n > uint64(len(r.remaining)) || n > MaxName {
		r.invalid, r.remaining = true, nil
		return nil
	}
	text := r.remaining[:n]
	r.remaining = r.remaining[n:]
	return text
}

// KeyHeader is the header of a request, as in codec.Encoder.SetHeader, that has its key: "u" and
// a key of the application, or a key that AppendKey encodes.
const KeyHeader = "agent.key"

// AppendKey appends the key of a numbered call to dst, and returns the extended slice. From the key
// the receiver also learns that all calls of the same worker with numbers up to ended have ended;
// number must be larger than ended.
func AppendKey(dst []byte, number, ended uint64) []byte {
	dst = strconv.AppendUint(append(dst, 'r'), number, 36)
	return strconv.AppendUint(append(dst, '.'), ended, 36)
}

// ParseKey decodes the key of a request. A key of the application begins with "u": key is then a
// copy of text, and number and ended are 0. For a key that AppendKey encoded, number and ended are
// its arguments, and key is the part without ended, which all attempts of the call have in common.
// The error matches ErrProtocol; the other results are then zero.
func ParseKey(text []byte) (key string, number, ended uint64, err error) {
	if len(text) <= MaxName+1 && bytes.HasPrefix(text, []byte("u")) {
		return string(text), 0, 0, nil
	}
	numbered, last, _ := bytes.Cut(text, []byte("."))
	if len(text) <= MaxName && bytes.HasPrefix(numbered, []byte("r")) {
		number, err = strconv.ParseUint(string(numbered[1:]), 36, 64)
		if err == nil {
			ended, err = strconv.ParseUint(string(last), 36, 64)
		}
		if err == nil && number > ended {
			return string(numbered), number, ended, nil
		}
	}
	return "", 0, 0, fmt.Errorf("%w: key %.50q of %d bytes", ErrProtocol, text, len(text))
}
