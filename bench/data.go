package bench

import (
	"math"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// What tensors may hold, for measuring compression. DataPattern is what the C++
// peers make too.
const (
	DataPattern = "pattern" // cannot be compressed
	DataZeros   = "zeros"   // but for the first 8 bytes
	DataWeights = "weights" // float32 of a normal distribution, as weights are at first
	DataRandom  = "random"  // cannot be compressed
)

// AllData lists what tensors may hold.
func AllData() []string { return []string{DataPattern, DataZeros, DataWeights, DataRandom} }

// contents is what tensors hold, and how they are to travel.
type contents struct {
	data        string // as in Spec
	compression pipe.Compression
}

func (s Spec) contents() contents { return contents{s.Data, s.Compression} }

func (c contents) words() words {
	switch c.data {
	case DataZeros:
		return zeros
	case DataWeights:
		return weights
	case DataRandom:
		return random
	default:
		return word
	}
}

func zeros(number, index uint64) uint64 {
	if index == 0 {
		return word(number, 0)
	}
	return 0
}

// random is splitmix64.
func random(number, index uint64) uint64 {
	x := (number<<32 + index + 1) * 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func weights(number, index uint64) uint64 {
	return uint64(weight(number, 2*index)) | uint64(weight(number, 2*index+1))<<32
}

// weight is nearly of a normal distribution, with a deviation of 0.02: the sum of
// four even ones is. A second number fills the mantissa.
func weight(number, index uint64) uint32 {
	x := random(2*number, index)
	sum := x&0xffff + x>>16&0xffff + x>>32&0xffff + x>>48
	fine := float64(random(2*number+1, index)>>32) / (1 << 32)
	const middle, deviation = 2 * 0xffff, 0xffff * 0.57735
	return math.Float32bits(float32((float64(sum) + fine - middle) / deviation * 0.02))
}

// wireShare is the part of the bytes of tensors that travelled, 1 where nothing
// was compressed.
func wireShare(c pipe.CompressionStats) float64 {
	plain := c.Sent.Bytes + c.Plain.Bytes
	if plain == 0 {
		return 1
	}
	return float64(c.Sent.WireBytes+c.Plain.Bytes) / float64(plain)
}
