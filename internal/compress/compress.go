// Package compress is the compressed form in which the parts of a message may
// travel in the native dialect. docs/wire.md describes it:
//
//	length of block 0, of block 1, ...   4 bytes each, little-endian
//	block 0, block 1, ...
//
// A block stands for [BlockSize] bytes of the part, the last one for what is
// left. One whose length is that of the bytes it stands for is those bytes;
// a shorter one was compressed, each on its own. The form is always shorter
// than the part.
//
// Since no block is longer than what it stands for, the form can be received
// into the end of the memory that the part is going to, and decoded there from
// the front: what is written never reaches what has not been read. So a receiver
// needs no memory of the size of a part beside the one that it was given.
//
// [Coders] are the encoders and decoders of a context; a [Packing] holds what
// has been compressed of one message.
package compress

import (
	"errors"
	"fmt"
)

// BlockSize is the number of bytes that a block stands for. It fits the cache
// of a core, and is how much is done between two looks at whether to give up.
const BlockSize = 256 << 10

// entrySize is the size in bytes of the length of a block.
const entrySize = 4

// Codec says how blocks were compressed. The values are those on the wire.
type Codec byte

const (
	// None: the part travels as it is.
	None Codec = iota
	// S2 is the block format of S2, an extension of Snappy.
	S2
	// Zstd is frames of Zstandard (RFC 8878) without a dictionary.
	Zstd

	codecs // their number
)

// Known reports whether c is one of the codecs, None included.
func (c Codec) Known() bool { return c < codecs }

func (c Codec) String() string {
	switch c {
	case None:
		return "none"
	case S2:
		return "s2"
	case Zstd:
		return "zstd"
	default:
		return fmt.Sprintf("codec %d", byte(c))
	}
}

// ErrCorrupt matches errors about bytes that are no compressed form of what they
// are said to be.
var ErrCorrupt = errors.New("compressed bytes are corrupt")

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrCorrupt, fmt.Errorf(format, args...))
}

// blocks is the number of blocks of a part of n bytes.
func blocks(n int) int { return n/BlockSize + min(1, n%BlockSize) }
