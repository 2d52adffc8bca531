package filetransfer

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumOf returns the CRC32C of data.
func sumOf(data []byte) uint32 { return crc32.Checksum(data, castagnoli) }

// fileSum computes the CRC32C of a file from those of its parts: the bytes before the tensors, and each
// tensor.
type fileSum struct {
	parts []partSum // in the order of the file
}

type partSum struct {
	crc   uint32
	bytes int
}

// newFileSum returns the sum of a file that begins with head and has that number of tensors. set must
// be called for each tensor before total.
func newFileSum(head []byte, tensors int) fileSum {
	s := fileSum{parts: make([]partSum, 1+tensors)}
	s.parts[0] = partSum{sumOf(head), len(head)}
	return s
}

// set records the CRC32C and the size in bytes of the tensor with that index. Different tensors may be
// set concurrently.
func (s *fileSum) set(index int, crc uint32, bytes int) { s.parts[1+index] = partSum{crc, bytes} }

// total returns the CRC32C of the whole file. All tensors must have been set.
func (s *fileSum) total() uint32 {
	var crc uint32
	for _, p := range s.parts {
		crc = combineSums(crc, p.crc, p.bytes)
	}
	return crc
}

// combineSums returns the CRC32C of two consecutive pieces from the sums of both and the length
// of the second. A CRC is linear over GF(2): the result is the first sum, shifted by that many
// zero bytes, plus the second.
func combineSums(first, second uint32, secondBytes int) uint32 {
	// A shift by one byte is a multiplication by x^8 modulo the polynomial. Its squares
	// shift by two, four, eight bytes and so on.
	move := uint32(1) << (31 - 8) // x^8: bit 31 stands for x^0
	for n := secondBytes; n > 0; n >>= 1 {
		if n&1 != 0 {
			first = multiply(first, move)
		}
		move = multiply(move, move)
	}
	return first ^ second
}

// multiply returns the product of two polynomials modulo that of CRC32C. In this reflected form, bit 31
// is the coefficient of x^0.
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
