package mpt

import (
	"encoding/binary"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
)

// frameKind is the first byte of a control frame of the native dialect. Numbers follow, little-endian.
type frameKind byte

const (
	kindOpen     frameKind = 1 + iota // client: requests count lanes
	kindLanes                         // server: addresses of the lanes, as a ServerHello
	kindOpened                        // client: count lanes are open, all or none
	kindOffer                         // sender: the transfer is ready, and its route
	kindWithdraw                      // sender: withdraws the offer
	kindOrder                         // receiver: requests a slice on a lane
	kindRest                          // either end: the lanes may be closed
)

// size returns the number of bytes that follow the kind in a frame of kind k, or -1 if k is unknown
// or is kindLanes, whose frames have several sizes.
func (k frameKind) size() int {
	switch k {
	case kindOpen, kindOpened:
		return 2
	case kindOffer:
		return 9
	case kindWithdraw:
		return 8
	case kindOrder:
		return 26
	case kindRest:
		return 0
	}
	return -1
}

// route is the path of a transfer.
type route byte

const (
	routeHost  route = iota // whole, over the pipe's bulk connection
	routeLanes              // in slices, over lanes
)

// controlFrame is a control frame. Fields that its kind does not have are zero.
type controlFrame struct {
	kind           frameKind
	count          int // number of lanes; of an order: the lane
	id             uint64
	route          route
	offset, length uint64
	hello          wire.MPTServerHello
}

// appendControl appends the encoding of w to dst and returns the extended slice.
func appendControl(dst []byte, w controlFrame) []byte {
	dst = append(dst, byte(w.kind))
	switch w.kind {
	case kindOpen, kindOpened:
		return binary.LittleEndian.AppendUint16(dst, uint16(w.count))
	case kindLanes:
		return w.hello.Append(dst)
	case kindRest:
		return dst
	}
	dst = binary.LittleEndian.AppendUint64(dst, w.id)
	switch w.kind {
	case kindOffer:
		dst = append(dst, byte(w.route))
	case kindOrder:
		dst = binary.LittleEndian.AppendUint64(dst, w.offset)
		dst = binary.LittleEndian.AppendUint64(dst, w.length)
		dst = binary.LittleEndian.AppendUint16(dst, uint16(w.count))
	}
	return dst
}

// decodeControl decodes p, a whole control frame. For a kindLanes frame it sets only the kind and
// ignores the other bytes of p. The result does not alias p. The error matches channel.ErrProtocol:
// p is empty, has the wrong size, an unknown kind or an unknown route.
func decodeControl(p []byte) (controlFrame, error) {
	if len(p) == 0 {
		return controlFrame{}, protocolError("an empty control frame")
	}
	w := controlFrame{kind: frameKind(p[0])}
	p = p[1:]
	if w.kind == kindLanes {
		return w, nil
	}
	if want := w.kind.size(); len(p) != want {
		return controlFrame{}, protocolError("control frame %d with %d bytes after its kind", w.kind, len(p))
	}
	switch w.kind {
	case kindOpen, kindOpened:
		w.count = int(binary.LittleEndian.Uint16(p))
		return w, nil
	case kindRest:
		return w, nil
	}
	w.id = binary.LittleEndian.Uint64(p)
	switch w.kind {
	case kindOffer:
		w.route = route(p[8])
		if w.route > routeLanes {
			return controlFrame{}, protocolError("route %d", w.route)
		}
	case kindOrder:
		w.offset = binary.LittleEndian.Uint64(p[8:])
		w.length = binary.LittleEndian.Uint64(p[16:])
		w.count = int(binary.LittleEndian.Uint16(p[24:]))
	}
	return w, nil
}

// readControl reads and handles the peer's control frames until reading, decoding or handling one
// fails, and returns that error, which is never nil.
func (e *nativeEnd) readControl() error {
	buf := make([]byte, 64)
	for {
		text, err := readFrame(e.control, buf, maxServerHello)
		if err != nil {
			return err
		}
		w, err := decodeControl(text)
		if err != nil {
			return err
		}
		if err := e.handle(w, text[1:]); err != nil {
			return err
		}
	}
}

// handle handles control frame w. rest has the bytes that follow the kind in the frame; handle does
// not retain it. After an error the caller must end the channel; after the end of the channel the
// error is that of the channel. If the peer is lost, handle ignores the frame. It locks mu.
func (e *nativeEnd) handle(w controlFrame, rest []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.ended:
		return e.lifecycle.Err()
	case e.peerGone != nil:
		return nil // nothing is in progress that it could affect
	}
	switch w.kind {
	case kindOpen:
		return e.handleOpen(w.count)
	case kindLanes:
		return e.handleLanes(rest)
	case kindOpened:
		return e.handleOpened(w.count)
	case kindOffer:
		return e.handleOffer(w)
	case kindWithdraw:
		delete(e.offers, w.id)
		if op := e.recvs.ops[w.id]; op != nil && op.offered {
			e.cancel(&e.recvs, op, e.wrapError(channel.ErrAborted))
		}
		return nil
	case kindRest:
		return e.handleRest()
	default:
		return e.handleOrder(w)
	}
}
