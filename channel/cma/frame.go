package cma

import (
	"encoding/binary"
	"math"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// The frames of the native dialect. All numbers are little-endian; what is
// reserved is 0. A frame begins with
//
//	1  kind
//	3  reserved
//	4  process of the sender of the frame, in an offer; else reserved
//	8  id of the transfer
//
// An offer goes on with
//
//	8     address of its word
//	8     the word, for as long as the offer holds; not 0
//	16 n  address and length of each piece of the tensor, 1 <= n <= 4096
//
// All offers of an end name the same process.
const (
	kindOffer    = 1 // the tensor is there to be copied
	kindWithdraw = 2 // it is not any more
	kindCopied   = 3 // the receiver has it
)

// Sizes of frames, and of their parts.
const (
	headSize   = 16
	wordSize   = 8
	offerHead  = headSize + 8 + wordSize
	pieceSize  = 16
	maxListed  = 4096
	maxFrame   = offerHead + maxListed*pieceSize
	smallFrame = offerHead + pieceSize
)

// offer is a tensor that the peer lets this end copy.
type offer struct {
	id      uint64
	pid     int
	address uint64 // of the word
	word    uint64
	pieces  []segment
	size    uint64 // of all pieces
}

func appendHead(dst []byte, kind byte, pid uint32, id uint64) []byte {
	dst = append(dst, kind, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, pid)
	return binary.LittleEndian.AppendUint64(dst, id)
}

// appendOffer appends an offer without its pieces.
func appendOffer(dst []byte, o *offer) []byte {
	dst = appendHead(dst, kindOffer, uint32(o.pid), o.id)
	dst = binary.LittleEndian.AppendUint64(dst, o.address)
	return binary.LittleEndian.AppendUint64(dst, o.word)
}

// appendPiece appends one of the pieces that follow.
func appendPiece(dst []byte, s segment) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, s.address)
	return binary.LittleEndian.AppendUint64(dst, s.size)
}

// decodeOffer reads a frame of that kind.
func decodeOffer(p []byte) (*offer, error) {
	if len(p) < smallFrame || (len(p)-offerHead)%pieceSize != 0 || p[1]|p[2]|p[3] != 0 {
		return nil, protocolError("an offer of %d bytes, or with reserved bytes", len(p))
	}
	pid := binary.LittleEndian.Uint32(p[4:])
	o := &offer{
		id:      binary.LittleEndian.Uint64(p[8:]),
		pid:     int(pid),
		address: binary.LittleEndian.Uint64(p[headSize:]),
		word:    binary.LittleEndian.Uint64(p[headSize+8:]),
		pieces:  make([]segment, 0, (len(p)-offerHead)/pieceSize),
	}
	if !isProcess(pid) || o.word == 0 {
		return nil, protocolError("an offer of process %d with the word %d", pid, o.word)
	}
	for p = p[offerHead:]; len(p) > 0; p = p[pieceSize:] {
		s := segment{binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])}
		if s.size == 0 || s.size > math.MaxInt64-o.size {
			return nil, protocolError("an offer with a piece of %d bytes", s.size)
		}
		o.size += s.size
		o.pieces = append(o.pieces, s)
	}
	return o, nil
}

// decodeWord reads a frame that has only a head.
func decodeWord(p []byte) (id uint64, err error) {
	if len(p) != headSize || p[1]|p[2]|p[3]|p[4]|p[5]|p[6]|p[7] != 0 {
		return 0, protocolError("a word of %d bytes, or with reserved bytes", len(p))
	}
	return binary.LittleEndian.Uint64(p[8:]), nil
}

// frameReader reads frames into memory that it keeps while they are small.
type frameReader struct {
	conn transport.Conn
	text [smallFrame]byte
	part [1][]byte
}

// next returns a frame, valid until the next call. It is at least as long as a
// head.
func (r *frameReader) next() ([]byte, error) {
	n, err := r.conn.NextFrame()
	if err != nil {
		return nil, err
	}
	if n < headSize || n > maxFrame {
		return nil, protocolError("a frame of %d bytes", n)
	}
	p := r.text[:min(n, smallFrame)]
	if n > smallFrame {
		p = make([]byte, n)
	}
	r.part[0] = p
	return p, r.conn.ReadBody(r.part[:]...)
}
