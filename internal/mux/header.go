package mux

import (
	"encoding/binary"
	"time"
)

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

func pingRequest(number uint32) header {
	h := header{1: byte(ping), 3: byte(syn)}
	h.setLength(number)
	return h
}

func pingReply(number uint32) header {
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
func (h *header) isGoAway() bool       { return h.kind() == goAway }
func (h *header) isPingRequest() bool  { return h.kind() == ping && h.has(syn) }
func (h *header) isPingReply() bool    { return h.kind() == ping && !h.has(syn) }

// body returns the number of bytes that follow the header: the length for data, and otherwise 0.
func (h *header) body() uint32 {
	if h.kind() == data {
		return h.length()
	}
	return 0
}

// maxAge is the time for which a measurement is not repeated.
const maxAge = time.Second

// roundTrip measures the time from a ping request to its reply, whenever latest asks for a
// measurement that is missing or too old. windows.mu guards it.
type roundTrip struct {
	announced bool // there was a measurement
	length    time.Duration
	at        time.Time // when length was measured

	wanted bool // a request is to be sent
	pinged bool // it was sent and has no reply yet
	number uint32
	began  time.Time
}

// latest returns the last measurement, of any age, and false if there was none yet. If it is older
// than maxAge, or missing, latest requests a new one, which startPing begins.
func (r *roundTrip) latest(now time.Time) (length time.Duration, announced bool) {
	if !r.pinged && (!r.announced || now.Sub(r.at) >= maxAge) {
		r.wanted = true
	}
	return r.length, r.announced
}

// startPing returns the number of a ping request that the caller must send now, and true if one is
// wanted. The measurement begins.
func (r *roundTrip) startPing(now time.Time) (number uint32, ok bool) {
	if !r.wanted {
		return 0, false
	}
	r.wanted, r.pinged = false, true
	r.number++
	r.began = now
	return r.number, true
}

func (r *roundTrip) pingReplied(number uint32, now time.Time) {
	if !r.pinged || number != r.number {
		return
	}
	r.pinged, r.announced = false, true
	r.length, r.at = now.Sub(r.began), now
}
