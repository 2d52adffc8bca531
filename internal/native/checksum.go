package native

import (
	"encoding/binary"
	"hash/crc32"
)

// SumSize is the size of a frame's checksum in bytes.
const SumSize = 4

// castagnoli is the polynomial that processors have an instruction for.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Sum extends a CRC32C by more bytes; the sum of no bytes is 0. What is
// scattered over memory is summed piece by piece.
func Sum(sum uint32, p []byte) uint32 { return crc32.Update(sum, castagnoli, p) }

// AppendChecksum ends the frame that starts at dst[start:] with the sum of its
// header and body. The header must have the flag for it.
func AppendChecksum(dst []byte, start int) []byte {
	return binary.LittleEndian.AppendUint32(dst, Sum(0, dst[start:]))
}

// compareSums returns an error that matches ErrChecksum unless the sum that
// came is that of the bytes that came.
func compareSums(frame string, came, counted uint32) error {
	if came != counted {
		return fault(frame, "crc", "%w: %08x came, the bytes make %08x", ErrChecksum, came, counted)
	}
	return nil
}
