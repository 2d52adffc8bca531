package ferry

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumOf is the CRC32C of data.
func sumOf(data []byte) uint32 { return crc32.Checksum(data, castagnoli) }

// fileSum is the CRC32C of a file of which the parts are summed apart.
type fileSum struct {
	parts []partSum // in the order of the file
}

type partSum struct {
	crc   uint32
	bytes int
}

// newFileSum makes the sum of a file that begins with head and has so many
// tensors.
func newFileSum(head []byte, tensors int) fileSum {
	s := fileSum{parts: make([]partSum, 1+tensors)}
	s.parts[0] = partSum{sumOf(head), len(head)}
	return s
}

// set notes the sum of a tensor. Different tensors may be set at once.
func (s *fileSum) set(index int, crc uint32, bytes int) { s.parts[1+index] = partSum{crc, bytes} }

// total is the sum of the whole.
func (s *fileSum) total() uint32 {
	var crc uint32
	for _, p := range s.parts {
		crc = joinSums(crc, p.crc, p.bytes)
	}
	return crc
}

// joinSums is the CRC32C of two pieces one behind the other, from the sums of
// both and the length of the second: a CRC is linear over GF(2), so the first
// sum, moved past that many zero bytes, and the second add up.
func joinSums(first, second uint32, secondBytes int) uint32 {
	// Moving by one byte is multiplying by x^8 modulo the polynomial; squares
	// of that move by two, four, eight bytes and so on.
	move := uint32(1) << (31 - 8) // x^8: bit 31 stands for x^0
	for n := secondBytes; n > 0; n >>= 1 {
		if n&1 != 0 {
			first = multiply(first, move)
		}
		move = multiply(move, move)
	}
	return first ^ second
}

// multiply is the product of two polynomials modulo that of CRC32C, in the
// reflected form in which bit 31 stands for x^0.
func multiply(a, b uint32) uint32 {
	var product uint32
	for bit := uint32(1) << 31; bit != 0; bit >>= 1 {
		if a&bit != 0 {
			product ^= b
		}
		carry := b & 1
		b >>= 1
		if carry != 0 {
			b ^= crc32.Castagnoli
		}
	}
	return product
}
