package cma

import (
	"encoding/binary"
	"math"

	"github.com/tensorpipe-go/tensorpipe/internal/onesided"
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
	kindDescribe = byte(onesided.Describe) // 1: describes a tensor to copy
	kindRevoke   = byte(onesided.Revoke)   // 2: revokes a description
	kindCopied   = byte(onesided.Copied)   // 3: the receiver has copied the tensor
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
	one           [1]segment // memory of pieces if there is one
	size          uint64     // of all pieces

	// Used while the tensor is copied:
	copyTask copyTask
	validity [validitySize]byte // the peer's validity word after the copy
}

func appendHead(dst []byte, kind byte, pid uint32, id uint64) []byte {
	dst = append(dst, kind, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, pid)
	return binary.LittleEndian.AppendUint64(dst, id)
}

// appendDescription appends the encoding of o to dst, without the list o.pieces, and returns the
// extended slice. The caller completes the frame by calling appendPiece for each piece.
func appendDescription(dst []byte, o *description) []byte {
	dst = appendHead(dst, kindDescribe, uint32(o.pid), o.id)
	dst = binary.LittleEndian.AppendUint64(dst, o.validityAddr)
	return binary.LittleEndian.AppendUint64(dst, o.validityValue)
}

// appendPiece appends the encoding of s, one of the pieces of a description, to dst, and returns the
// extended slice.
func appendPiece(dst []byte, s segment) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, s.address)
	return binary.LittleEndian.AppendUint64(dst, s.size)
}

// decodeDescription decodes p, a whole frame, as a description. It does not check the kind of the
// frame. The result does not alias p. The error matches channel.ErrProtocol: the size is wrong,
// reserved bytes are not 0, or a number is not valid.
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
	}
	o.pieces = o.one[:0]
	if n := (len(p) - descriptionHead) / pieceSize; n > 1 {
		o.pieces = make([]segment, 0, n)
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

// decodeControl decodes p, a whole frame that must consist of a head only, and returns the id of
// the transfer. It does not check the kind of the frame. The error matches channel.ErrProtocol: the
// size is wrong or reserved bytes are not 0.
func decodeControl(p []byte) (id uint64, err error) {
	if len(p) != headSize || p[1]|p[2]|p[3]|p[4]|p[5]|p[6]|p[7] != 0 {
		return 0, protocolError("a control frame of %d bytes, or with reserved bytes", len(p))
	}
	return binary.LittleEndian.Uint64(p[8:]), nil
}

// Append implements [onesided.Protocol]: it appends the encoding of f to dst and returns the
// extended slice. A description is encoded even if its source has been revoked; the frame that
// revokes it follows.
func (p *native) Append(dst []byte, f onesided.Frame) []byte {
	if f.Kind != onesided.Describe {
		return appendHead(dst, byte(f.Kind), 0, f.ID)
	}
	s := f.Source.(*source)
	dst = appendDescription(dst, &description{id: f.ID, pid: p.pid, validityAddr: addressOfValidity(&s.validity), validityValue: s.validValue})
	for _, piece := range s.pieces {
		dst = appendPiece(dst, segmentOf(piece))
	}
	return dst
}

// Decode implements [onesided.Protocol]: it decodes text, a whole frame that is not empty. The
// result does not alias text. The first description sets the peer's process if it is not known yet.
// The error matches channel.ErrProtocol: the frame is malformed, its kind is unknown, or it
// describes memory of another process than the peer's.
func (p *native) Decode(_ int, text []byte) (onesided.Frame, error) {
	f := onesided.Frame{Kind: onesided.Kind(text[0])}
	switch text[0] {
	case kindDescribe:
		o, err := decodeDescription(text)
		if err != nil {
			return f, err
		}
		if p.peerPID != 0 && p.peerPID != o.pid {
			return f, protocolError("a description of process %d, by process %d", o.pid, p.peerPID)
		}
		p.peerPID = o.pid
		f.ID, f.Remote = o.id, onesided.Remote{Memory: o, Size: o.size, Pieces: len(o.pieces)}
		return f, nil
	case kindRevoke, kindCopied:
		var err error
		f.ID, err = decodeControl(text)
		return f, err
	}
	return f, protocolError("a frame of kind %d", text[0])
}
