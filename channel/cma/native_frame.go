package cma

import (
	"encoding/binary"
	"math"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// The frames of the native dialect. All numbers are little-endian; reserved bytes are 0. A frame begins
// with
//
//	1  kind
//	3  reserved
//	4  process of the sender of the frame, in a description; else reserved
//	8  id of the transfer
//
// A description continues with
//
//	8     address of the validity word
//	8     value of the validity word while the description is valid; not 0
//	16 n  address and length of each piece of the tensor, 1 <= n <= 4096
//
// All descriptions of an end name the same process.
const (
	kindDescribe = 1 // describes a tensor to copy
	kindRevoke   = 2 // revokes a description
	kindCopied   = 3 // the receiver has copied the tensor
)

// Sizes of frames and their parts in bytes.
const (
	headSize        = 16
	validitySize    = 8
	descriptionHead = headSize + 8 + validitySize
	pieceSize       = 16
	maxListedPieces = 4096
	maxFrame        = descriptionHead + maxListedPieces*pieceSize
	smallFrame      = descriptionHead + pieceSize
)

// description describes a tensor that the peer permits this end to copy, until the validity word in
// the peer's memory changes.
type description struct {
	id            uint64
	pid           int
	validityAddr  uint64
	validityValue uint64
	pieces        []segment
	size          uint64 // of all pieces
}

func appendHead(dst []byte, kind byte, pid uint32, id uint64) []byte {
	dst = append(dst, kind, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, pid)
	return binary.LittleEndian.AppendUint64(dst, id)
}

// appendDescription appends the encoding of o without its pieces, which the caller appends with
// appendPiece.
func appendDescription(dst []byte, o *description) []byte {
	dst = appendHead(dst, kindDescribe, uint32(o.pid), o.id)
	dst = binary.LittleEndian.AppendUint64(dst, o.validityAddr)
	return binary.LittleEndian.AppendUint64(dst, o.validityValue)
}

// appendPiece appends one of the pieces of a description.
func appendPiece(dst []byte, s segment) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, s.address)
	return binary.LittleEndian.AppendUint64(dst, s.size)
}

// decodeDescription decodes p, a whole frame of kind kindDescribe with at least a head. The result
// does not alias p. The error matches channel.ErrProtocol.
func decodeDescription(p []byte) (*description, error) {
	if len(p) < smallFrame || (len(p)-descriptionHead)%pieceSize != 0 || p[1]|p[2]|p[3] != 0 {
		return nil, protocolError("a description of %d bytes, or with reserved bytes", len(p))
	}
	pid := binary.LittleEndian.Uint32(p[4:])
	o := &description{
		id:            binary.LittleEndian.Uint64(p[8:]),
		pid:           int(pid),
		validityAddr:  binary.LittleEndian.Uint64(p[headSize:]),
		validityValue: binary.LittleEndian.Uint64(p[headSize+8:]),
		pieces:        make([]segment, 0, (len(p)-descriptionHead)/pieceSize),
	}
	if !isProcess(pid) || o.validityValue == 0 {
		return nil, protocolError("a description of process %d with the validity word %d", pid, o.validityValue)
	}
	for p = p[descriptionHead:]; len(p) > 0; p = p[pieceSize:] {
		s := segment{binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])}
		if s.size == 0 || s.size > math.MaxInt64-o.size {
			return nil, protocolError("a description with a piece of %d bytes", s.size)
		}
		o.size += s.size
		o.pieces = append(o.pieces, s)
	}
	return o, nil
}

// decodeControl decodes p, a whole frame that consists of a head only, and returns the id of its
// transfer. It ignores the kind. The error matches channel.ErrProtocol.
func decodeControl(p []byte) (id uint64, err error) {
	if len(p) != headSize || p[1]|p[2]|p[3]|p[4]|p[5]|p[6]|p[7] != 0 {
		return 0, protocolError("a control frame of %d bytes, or with reserved bytes", len(p))
	}
	return binary.LittleEndian.Uint64(p[8:]), nil
}

// frameReader reads frames, small ones into a reused buffer.
type frameReader struct {
	conn transport.Conn
	text [smallFrame]byte
	part [1][]byte
}

// next reads the next frame. The result is at least headSize bytes long and valid until the next call.
// The error is that of the connection, or matches channel.ErrProtocol if the length is invalid.
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
