package mux

import "encoding/binary"

// headerSize is the size of a header in bytes. All messages but data consist of a header only.
const headerSize = 12

// header begins a message: a version, a kind, two bytes of flags, the id of a stream, and a length
// whose meaning depends on the kind, all big-endian.
type header [headerSize]byte

// kind is the kind of a message, as in its header.
type kind uint8

const (
	data   kind = iota // length bytes of a stream follow
	credit             // the stream may send length bytes more
	ping               // with syn: a request; with ack: its reply
	goAway             // the sender accepts no more streams; length is the reason
)

const (
	syn uint16 = 1 << iota // the stream is new
	ack                    // the stream was accepted
	fin                    // the sender writes no more
	rst                    // the stream is reset
)

// streamMessage returns the header of a message about a stream, without flags. k is data or credit,
// and bytes is the size of the data that follow, or the credit.
func streamMessage(k kind, stream, bytes uint32) header {
	h := header{1: byte(k)}
	binary.BigEndian.PutUint32(h[4:], stream)
	h.setLength(bytes)
	return h
}

// pingMessage returns the header of the ping with that number, which is the whole message. It is a
// request if flag is syn, and a reply if flag is ack.
func pingMessage(flag uint16, number uint32) header {
	h := header{1: byte(ping), 3: byte(flag)}
	h.setLength(number)
	return h
}

func (h *header) version() uint8        { return h[0] }
func (h *header) kind() kind            { return kind(h[1]) }
func (h *header) flags() uint16         { return binary.BigEndian.Uint16(h[2:]) }
func (h *header) has(flags uint16) bool { return h.flags()&flags != 0 }
func (h *header) stream() uint32        { return binary.BigEndian.Uint32(h[4:]) }
func (h *header) length() uint32        { return binary.BigEndian.Uint32(h[8:]) }
func (h *header) setLength(n uint32)    { binary.BigEndian.PutUint32(h[8:], n) }
func (h *header) isPingRequest() bool   { return h.kind() == ping && h.has(syn) }

// ofStream reports whether h is about a stream (of kind data or credit) and has at least one of the
// flags.
func (h *header) ofStream(flags uint16) bool { return h.kind() <= credit && h.has(flags) }

// onlyGrants reports whether h is a credit message without flags, which changes nothing but the
// window.
func (h *header) onlyGrants() bool { return h.kind() == credit && h.flags() == 0 }

// body returns the number of bytes that follow the header: the length for data, and otherwise 0.
func (h *header) body() uint32 {
	if h.kind() == data {
		return h.length()
	}
	return 0
}
