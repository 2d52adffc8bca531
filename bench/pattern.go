package bench

import "encoding/binary"

// word is eight bytes of a message, those that start at 8*index. It depends on
// both numbers, so that messages or parts in the wrong place show. The C++ side
// makes the same ones (arena.cc).
func word(number, index uint64) uint64 {
	x := (number+1)*0x9e3779b97f4a7c15 + index*0xbf58476d1ce4e5b9
	return x ^ x>>29
}

// words is what messages hold: the eight bytes of message number that start at
// 8*index. No two messages are the same.
type words func(number, index uint64) uint64

func (w words) fill(p []byte, number int) {
	n := uint64(number)
	for i := range len(p) / 8 {
		binary.LittleEndian.PutUint64(p[8*i:], w(n, uint64(i)))
	}
	if rest := p[len(p)&^7:]; len(rest) > 0 {
		copy(rest, w.tail(n, len(p)))
	}
}

// difference is where p differs from what fill writes, -1 if nowhere.
func (w words) difference(p []byte, number int) int {
	n := uint64(number)
	for i := range len(p) / 8 {
		if binary.LittleEndian.Uint64(p[8*i:]) != w(n, uint64(i)) {
			return 8 * i
		}
	}
	if at := len(p) &^ 7; string(p[at:]) != string(w.tail(n, len(p))) {
		return at
	}
	return -1
}

// tail is what a message of length bytes has behind its last whole word.
func (w words) tail(number uint64, length int) []byte {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], w(number, uint64(length/8)))
	return b[:length%8]
}
