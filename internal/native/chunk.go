package native

import "encoding/binary"

const (
	// ChunkHeaderSize and ChunkTrailerSize are the bytes around those of a
	// chunk.
	ChunkHeaderSize  = 16
	ChunkTrailerSize = 8

	// MaxChunk bounds the bytes of one chunk, without header and trailer. It
	// bounds how long other transfers wait for their turn, and what must be
	// filled up when a transfer is given up.
	MaxChunk = 1 << 20
)

const chunkFrame = "CHUNK" // in errors

// Transfer is the id of a transfer: the part at a place (the index of a payload
// or of a tensor) of a message. Numbers of messages count from 0 for each
// direction; those from 1<<48 on begin anew.
func Transfer(number uint64, place uint16) uint64 { return number<<16 | uint64(place) }

// ChunkHeader stands before the bytes of a chunk. The chunks of one transfer
// come in order and fill its memory from the start.
type ChunkHeader struct {
	ID     uint64 // of the transfer, unique within its lane
	Length int    // bytes that follow, from 1 to MaxChunk
	Lane   uint16 // whose transfer it is: 0 the pipe's, from 1 a channel's
	CRC    bool   // the trailer has a checksum
}

// Append appends the ChunkHeaderSize bytes of h to dst.
func (h ChunkHeader) Append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, h.ID)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(h.Length))
	dst = binary.LittleEndian.AppendUint16(dst, h.Lane)
	return append(dst, crcFlag(h.CRC), 0)
}

// DecodeChunkHeader decodes a ChunkHeader from the first ChunkHeaderSize bytes
// of p.
func DecodeChunkHeader(p []byte) (ChunkHeader, error) {
	length, flags := binary.LittleEndian.Uint32(p[8:]), p[14]
	switch {
	case length == 0 || length > MaxChunk:
		return ChunkHeader{}, fault(chunkFrame, "length", "%d, want 1..%d", length, MaxChunk)
	case flags&^flagCRC != 0:
		return ChunkHeader{}, fault(chunkFrame, "flags", "unknown bits in %#02x", flags)
	case p[15] != 0:
		return ChunkHeader{}, fault(chunkFrame, "reserved", "%#02x, want 0", p[15])
	}
	return ChunkHeader{
		ID:     binary.LittleEndian.Uint64(p),
		Length: int(length),
		Lane:   binary.LittleEndian.Uint16(p[12:]),
		CRC:    flags&flagCRC != 0,
	}, nil
}

// ChunkTrailer stands behind the bytes of a chunk and says whether they count.
type ChunkTrailer struct {
	// Void: the sender gave the transfer up while the chunk was under way, and
	// filled it up with whatever it liked.
	Void bool

	// Sum is that of header and bytes if ChunkHeader.CRC is set, else 0. It is
	// 0 in a void chunk too: nobody needs to know what its bytes were.
	Sum uint32
}

// Append appends the ChunkTrailerSize bytes of t to dst.
func (t ChunkTrailer) Append(dst []byte) []byte {
	status := uint32(0)
	if t.Void {
		status = 1
	}
	dst = binary.LittleEndian.AppendUint32(dst, status)
	return binary.LittleEndian.AppendUint32(dst, t.Sum)
}

// DecodeChunkTrailer decodes a ChunkTrailer from the first ChunkTrailerSize
// bytes of p. Compare its checksum with Check.
func DecodeChunkTrailer(p []byte) (ChunkTrailer, error) {
	status := binary.LittleEndian.Uint32(p)
	if status > 1 {
		return ChunkTrailer{}, fault(chunkFrame, "status", "%d, want 0 or 1", status)
	}
	return ChunkTrailer{Void: status == 1, Sum: binary.LittleEndian.Uint32(p[4:])}, nil
}

// Check compares the checksum with sum, that of the header and bytes that came,
// which is not looked at where there is none.
func (t ChunkTrailer) Check(h ChunkHeader, sum uint32) error {
	if h.CRC && !t.Void {
		return compareSums(chunkFrame, t.Sum, sum)
	}
	if t.Sum != 0 {
		return fault(chunkFrame, "crc", "%08x where there is none, want 0", t.Sum)
	}
	return nil
}
