package filetransfer

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumOf returns the CRC32C of data.
func sumOf(data []byte) uint32 { return crc32.Checksum(data, castagnoli) }

// combineSums returns the CRC32C of two consecutive pieces of data. first and second are the CRC32C
// of the pieces, and secondBytes is the length of the second piece. A CRC is linear over GF(2): the
// result is first, shifted by secondBytes zero bytes, plus second.
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

// multiply returns the product of the polynomials a and b modulo the polynomial of CRC32C. In a, b
// and the result bit 31 is the coefficient of x^0.
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
