package compress

import (
	"encoding/binary"

	"github.com/klauspost/compress/s2"
)

// The decoder of S2 copies eight bytes at a time what it has written before, but byte
// by byte where fewer than ten bytes of the block follow. A block that repeats itself to
// its end, zeros above all, is one such copy. So the end of a block goes as it is, in a
// literal of its own, which any decoder takes.
const (
	s2Tail     = 16
	s2TailFrom = 4 << 10 // bytes of a block that it is worth a literal
	s2Literal  = (s2Tail - 1) << 2
)

// encodeS2 compresses src, in the memory of dst where that has enough: s2Tail bytes more
// than s2.MaxEncodedLen.
func encodeS2(dst, src []byte) []byte {
	head, tail := src, src[len(src):]
	if len(src) >= s2TailFrom {
		head, tail = src[:len(src)-s2Tail], src[len(src)-s2Tail:]
	}
	var before, after [binary.MaxVarintLen32]byte
	was, is := binary.PutUvarint(before[:], uint64(len(head))), binary.PutUvarint(after[:], uint64(len(src)))
	if was != is || len(tail) == 0 {
		return s2.Encode(dst, src)
	}
	out := s2.Encode(dst, head)
	copy(out, after[:is]) // a block begins with how many bytes it stands for
	return append(append(out, s2Literal), tail...)
}
