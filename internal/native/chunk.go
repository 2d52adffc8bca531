package native

import "encoding/binary"

const (
	// ChunkHeaderSize and ChunkTrailerSize are the sizes in bytes of what precedes and follows the
	// bytes of a chunk.
	ChunkHeaderSize  = 16
	ChunkTrailerSize = 8

	// MaxChunk is the maximum number of bytes of a chunk, without header and trailer. It bounds how
	// long other transfers wait for their turn, and how much padding an aborted transfer requires.
	MaxChunk = 1 << 20

	// MinEager and MaxEager bound the bytes of an eager transfer.
	MinEager = 64<<10 + 1
	MaxEager = 4 << 20

	// MaxWaiting is the most eager transfers that wait for credit.
	MaxWaiting = 1024
)

// flagEagerChunk is a flag of chunks, beside flagCRC.
const flagEagerChunk = 2

const chunkFrame = "CHUNK" // in errors

// TransferID returns the id of the transfer of one part: the part-th payload or the part-th tensor
// of the message with this number. A payload and a tensor may have the same id, because they use
// different lanes. Messages are numbered from 0 in each direction, so the caller must set bit 63 of
// the id if the server has sent the message.
func TransferID(message uint64, part uint16) uint64 { return message<<16 | uint64(part) }

// ChunkHeader precedes the bytes of a chunk. The chunks of a transfer arrive in order and fill its
// memory from the start.
type ChunkHeader struct {
	ID     uint64 // of the transfer, unique within its lane
	Length int    // bytes that follow, from 1 to MaxChunk
	Lane   uint16 // whose transfer it is: 0 the pipe's, from 1 a channel's
	CRC    bool   // the trailer has a checksum
	Eager  bool   // the transfer is eager: its bytes may arrive before the receiver has memory
}

// Append appends the encoding of h, ChunkHeaderSize bytes, to dst and returns the extended slice.
func (h ChunkHeader) Append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, h.ID)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(h.Length))
	dst = binary.LittleEndian.AppendUint16(dst, h.Lane)
	flags := crcFlag(h.CRC)
	if h.Eager {
		flags |= flagEagerChunk
	}
	return append(dst, flags, 0)
}

// DecodeChunkHeader decodes a ChunkHeader from the first ChunkHeaderSize bytes of p. p must not be
// shorter. If a field is invalid, the error is an [*Error] and the result is zero.
func DecodeChunkHeader(p []byte) (ChunkHeader, error) {
	length, flags := binary.LittleEndian.Uint32(p[8:]), p[14]
	switch {
	case length == 0 || length > MaxChunk:
		return ChunkHeader{}, fault(chunkFrame, "length", "%d, want 1..%d", length, MaxChunk)
	case flags&^(flagCRC|flagEagerChunk) != 0:
		return ChunkHeader{}, fault(chunkFrame, "flags", "unknown bits in %#02x", flags)
	case p[15] != 0:
		return ChunkHeader{}, fault(chunkFrame, "reserved", "%#02x, want 0", p[15])
	}
	return ChunkHeader{
		ID:     binary.LittleEndian.Uint64(p),
		Length: int(length),
		Lane:   binary.LittleEndian.Uint16(p[12:]),
		CRC:    flags&flagCRC != 0,
		Eager:  flags&flagEagerChunk != 0,
	}, nil
}

// ChunkTrailer follows the bytes of a chunk and states whether they are valid.
type ChunkTrailer struct {
	// Discarded is set if the sender aborted the transfer while it was sending the chunk, and padded
	// the chunk with arbitrary bytes.
	Discarded bool

	// Sum is the checksum of header and bytes if ChunkHeader.CRC is set, else 0. It is 0 in a discarded
	// chunk too, whose bytes have no meaning.
	Sum uint32
}

// Append appends the encoding of t, ChunkTrailerSize bytes, to dst and returns the extended slice.
func (t ChunkTrailer) Append(dst []byte) []byte {
	status := uint32(0)
	if t.Discarded {
		status = 1
	}
	dst = binary.LittleEndian.AppendUint32(dst, status)
	return binary.LittleEndian.AppendUint32(dst, t.Sum)
}

// DecodeChunkTrailer decodes a ChunkTrailer from the first ChunkTrailerSize bytes of p. p must not
// be shorter. If the status is invalid, the error is an [*Error]. The checksum is not verified;
// [ChunkTrailer.Check] does that.
func DecodeChunkTrailer(p []byte) (ChunkTrailer, error) {
	status := binary.LittleEndian.Uint32(p)
	if status > 1 {
		return ChunkTrailer{}, fault(chunkFrame, "status", "%d, want 0 or 1", status)
	}
	return ChunkTrailer{Discarded: status == 1, Sum: binary.LittleEndian.Uint32(p[4:])}, nil
}

// Check returns nil if t is valid for the chunk with header h, and otherwise an [*Error]. The
// caller has computed sum, the checksum of the encoded header and the bytes of the chunk. If t has
// another sum, the error matches ErrChecksum. If the chunk has no checksum or was discarded, sum is
// ignored, and t.Sum must be 0.
func (t ChunkTrailer) Check(h ChunkHeader, sum uint32) error {
	if h.CRC && !t.Discarded {
		return compareSums(chunkFrame, t.Sum, sum)
	}
	if t.Sum != 0 {
		return fault(chunkFrame, "crc", "%08x where there is none, want 0", t.Sum)
	}
	return nil
}
