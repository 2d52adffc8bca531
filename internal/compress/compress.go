// Package compress implements the compressed form in which the parts of a message may be sent in the
// native dialect. docs/wire.md specifies it:
//
//	length of block 0, of block 1, ...   4 bytes each, little-endian
//	block 0, block 1, ...
//
// A block represents [BlockSize] bytes of the part, the last one the remaining bytes. A block that has
// the length of the bytes that it represents is a copy of these bytes; a shorter one is compressed,
// independently of the others. The compressed form is always shorter than the part.
//
// Since no block is longer than the bytes that it represents, the compressed form can be received into
// the end of the part's destination memory, and decompressed there from the front without overwriting
// input that has not been read. A receiver therefore needs no additional memory of the size of a part.
//
// [Coders] are the encoders and decoders of a context; a [Compressor] holds the compressed bytes of one
// message.
package compress

import (
	"errors"
	"fmt"
)

// BlockSize is the number of bytes that a block represents. It fits into the cache of a core, and is
// the amount of work between two checks for cancellation.
const BlockSize = 256 << 10

// entrySize is the size in bytes of the length of a block.
const entrySize = 4

// Codec is the format in which blocks are compressed. The values are those on the wire.
type Codec byte

const (
	// None: the part is sent uncompressed.
	None Codec = iota
	// S2 is the block format of S2, an extension of Snappy.
	S2
	// Zstd is frames of Zstandard (RFC 8878) without a dictionary.
	Zstd

	codecs // their number
)

// Known reports whether c is None, S2 or Zstd, the codecs of this version.
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

// ErrCorrupt matches errors about bytes that are not a valid compressed form of the part.
var ErrCorrupt = errors.New("compressed bytes are corrupt")

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrCorrupt, fmt.Errorf(format, args...))
}

// blocks returns the number of blocks that represent a part of n bytes; 0 if n is 0. The last block
// may be shorter than BlockSize.
func blocks(n int) int { return n/BlockSize + min(1, n%BlockSize) }
