package bench

import (
	"encoding/binary"
	"math"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// Values of Spec.Data: the contents of tensors, for measuring compression. The C++ peers support
// DataPattern only.
const (
	DataPattern = "pattern" // not compressible
	DataZeros   = "zeros"   // zeros after the first 8 bytes
	DataWeights = "weights" // normally distributed float32, like initial weights
	DataRandom  = "random"  // not compressible
)

// AllData returns a new slice of the valid values of Spec.Data.
func AllData() []string { return []string{DataPattern, DataZeros, DataWeights, DataRandom} }

// contents describes the bytes of tensors and the compression requested for them.
type contents struct {
	data        string // as in Spec
	compression pipe.Compression
}

// contents returns the contents and the compression of tensors that s selects.
func (s Spec) contents() contents { return contents{s.Data, s.Compression} }

// generator returns the function that generates the words of the contents that c.data names. An
// unknown name stands for DataPattern.
func (c contents) generator() generator {
	switch c.data {
	case DataZeros:
		return func(number, index uint64) uint64 {
			if index == 0 {
				return patternWord(number, 0)
			}
			return 0
		}
	case DataWeights:
		return func(number, index uint64) uint64 {
			return uint64(weight(number, 2*index)) | uint64(weight(number, 2*index+1))<<32
		}
	case DataRandom:
		return random
	default:
		return patternWord
	}
}

// random returns the word with that index of the message with that number, for contents that do not
// compress. It is a hash of both arguments (splitmix64).
func random(number, index uint64) uint64 {
	x := (number<<32 + index + 1) * 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// weight returns the bits of the float32 with that index in the message with that number. The
// floats are approximately normally distributed around 0 with a standard deviation of 0.02: each is
// the sum of four uniform random numbers, with a fifth one for the low bits of the mantissa.
func weight(number, index uint64) uint32 {
	x := random(2*number, index)
	sum := x&0xffff + x>>16&0xffff + x>>32&0xffff + x>>48
	fine := float64(random(2*number+1, index)>>32) / (1 << 32)
	const middle, deviation = 2 * 0xffff, 0xffff * 0.57735
	return math.Float32bits(float32((float64(sum) + fine - middle) / deviation * 0.02))
}

// wireShare returns the number of bytes that a pipe sent for tensors divided by the number of bytes
// of these tensors, or 1 if it sent none. It is less than 1 if compression saved bytes.
func wireShare(c pipe.CompressionStats) float64 {
	plain := c.Sent.Bytes + c.Plain.Bytes
	if plain == 0 {
		return 1
	}
	return float64(c.Sent.WireBytes+c.Plain.Bytes) / float64(plain)
}

// patternWord returns the word with that index of the message with that number, for DataPattern.
// Words differ between messages and offsets, so that misplaced messages and parts are detected. The
// C++ program generates the same words (arena.cc).
func patternWord(number, index uint64) uint64 {
	x := (number+1)*0x9e3779b97f4a7c15 + index*0xbf58476d1ce4e5b9
	return x ^ x>>29
}

// generator returns eight bytes, as a little-endian number, of the message with that number, from
// offset 8*index on. Different messages must have different contents.
type generator func(number, index uint64) uint64

// fill overwrites p with the contents that g generates for the message with that number, of length
// len(p).
func (g generator) fill(p []byte, number int) {
	n := uint64(number)
	for i := range len(p) / 8 {
		binary.LittleEndian.PutUint64(p[8*i:], g(n, uint64(i)))
	}
	if last := p[len(p)&^7:]; len(last) > 0 {
		copy(last, g.tail(n, len(p)))
	}
}

// difference compares p with what fill writes for the message with that number. It returns the
// offset of the first word of 8 bytes that differs, or -1 if none does.
func (g generator) difference(p []byte, number int) int {
	n := uint64(number)
	for i := range len(p) / 8 {
		if binary.LittleEndian.Uint64(p[8*i:]) != g(n, uint64(i)) {
			return 8 * i
		}
	}
	if at := len(p) &^ 7; string(p[at:]) != string(g.tail(n, len(p))) {
		return at
	}
	return -1
}

// tail returns the last length%8 bytes of a message of length bytes: those after the last whole
// word.
func (g generator) tail(number uint64, length int) []byte {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], g(number, uint64(length/8)))
	return b[:length%8]
}
