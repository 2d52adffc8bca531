package mux

import "encoding/binary"

// headerSize is the size of a header, and of every message that is not data.
const headerSize = 12

// header begins a message: a version, a kind, two bytes of flags, the number of
// a stream, and a length whose meaning the kind decides; all big-endian.
type header [headerSize]byte

// kind says what a message is for.
type kind uint8

const (
	data     kind = iota // length bytes of a stream follow
	credit               // the stream may send length bytes more
	ping                 // flagged syn: a question; ack: its answer
	farewell             // the sender takes no more streams; length says why
)

const (
	syn uint16 = 1 << iota // the stream is new
	ack                    // the stream was accepted
	fin                    // the sender writes no more
	rst                    // the stream is no more
)

func dataMessage(stream, bytes uint32) header {
	h := header{1: byte(data)}
	binary.BigEndian.PutUint32(h[4:], stream)
	h.setLength(bytes)
	return h
}

func creditMessage(stream, bytes uint32) header {
	h := header{1: byte(credit)}
	binary.BigEndian.PutUint32(h[4:], stream)
	h.setLength(bytes)
	return h
}

func questionMessage(number uint32) header {
	h := header{1: byte(ping), 3: byte(syn)}
	h.setLength(number)
	return h
}

func answerMessage(number uint32) header {
	h := header{1: byte(ping), 3: byte(ack)}
	h.setLength(number)
	return h
}

func (h *header) version() uint8       { return h[0] }
func (h *header) kind() kind           { return kind(h[1]) }
func (h *header) flags() uint16        { return binary.BigEndian.Uint16(h[2:]) }
func (h *header) has(flag uint16) bool { return h.flags()&flag != 0 }
func (h *header) stream() uint32       { return binary.BigEndian.Uint32(h[4:]) }
func (h *header) length() uint32       { return binary.BigEndian.Uint32(h[8:]) }
func (h *header) setLength(n uint32)   { binary.BigEndian.PutUint32(h[8:], n) }
func (h *header) opens() bool          { return h.kind() <= credit && h.has(syn) }
func (h *header) accepts() bool        { return h.kind() <= credit && h.has(ack) }
func (h *header) ends() bool           { return h.kind() <= credit && h.has(fin|rst) }
func (h *header) resets() bool         { return h.kind() <= credit && h.has(rst) }
func (h *header) isCredit() bool       { return h.kind() == credit }
func (h *header) isFarewell() bool     { return h.kind() == farewell }
func (h *header) isQuestion() bool     { return h.kind() == ping && h.has(syn) }
func (h *header) isAnswer() bool       { return h.kind() == ping && !h.has(syn) }

// body is the number of bytes that follow the header.
func (h *header) body() uint32 {
	if h.kind() == data {
		return h.length()
	}
	return 0
}
