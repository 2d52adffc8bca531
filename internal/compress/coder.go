package compress

import (
	"encoding/binary"
	"sync"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

// Coders is a bounded set of encoders and decoders that messages share. All methods may be called
// concurrently.
type Coders struct {
	free  chan *coder // nil stands for a coder that has not been created yet
	slabs sync.Pool
}

// New returns Coders for n concurrent calls; further calls wait until a call has finished a block.
// n must be at least 1. Each of the n coders is created, with some MiB of memory, when it is first
// needed, and is kept.
func New(n int) *Coders {
	c := &Coders{free: make(chan *coder, n)}
	for range n {
		c.free <- nil
	}
	c.slabs.New = func() any { return new([slabSize]byte) }
	return c
}

// withCoder calls f with a coder that no other call uses at the same time, and returns the error of
// f. It blocks while all coders are in use. f must not retain the coder or its buffers.
func (c *Coders) withCoder(f func(*coder) error) error {
	k := <-c.free
	if k == nil {
		k = &coder{coded: make([]byte, 0, s2.MaxEncodedLen(BlockSize)+s2Tail)}
	}
	defer func() { c.free <- k }()
	return f(k)
}

// coder encodes or decodes one block at a time. It is not safe for concurrent use.
type coder struct {
	coded   []byte          // an encoded block: the output of encode, or a copy of input for decode
	plain   [BlockSize]byte // a block, if its memory is not contiguous
	encoder *zstd.Encoder   // created on first use, like decoder
	decoder *zstd.Decoder
}

// encode compresses src, at most BlockSize bytes, with codec, which must not be None. The result
// may be longer than src. It is valid until k is used again. The error is not nil only if the
// encoder could not be created.
func (k *coder) encode(codec Codec, src []byte) ([]byte, error) {
	if codec == S2 {
		return encodeS2(k.coded[:cap(k.coded)], src), nil
	}
	if k.encoder == nil {
		e, err := zstd.NewWriter(nil,
			zstd.WithEncoderConcurrency(1),
			zstd.WithEncoderLevel(zstd.SpeedFastest),
			// Entropy-codes literals even if nothing repeats: weights do not repeat, but their
			// exponents are similar.
			zstd.WithAllLitEntropyCompression(true),
			zstd.WithSingleSegment(true),
			zstd.WithWindowSize(BlockSize),
			zstd.WithLowerEncoderMem(true),
			zstd.WithEncoderCRC(false), // the frames of the dialect have one if requested
		)
		if err != nil {
			return nil, err
		}
		k.encoder = e
	}
	return k.encoder.EncodeAll(src, k.coded[:0]), nil
}

// decode decompresses src, one block, into dst and fills dst exactly. dst must not be empty and
// must not overlap src. If src is not a block of len(dst) bytes, or the decoder cannot be created,
// the error matches ErrCorrupt, and the contents of dst are undefined.
func (k *coder) decode(codec Codec, dst, src []byte) error {
	n := len(dst)
	dst = dst[:n:n]
	var out []byte
	var err error
	if codec == S2 {
		if claim, err := s2.DecodedLen(src); err != nil || claim != n {
			return corrupt("a block claims %d bytes and stands for %d", claim, n)
		}
		out, err = s2.Decode(dst, src)
	} else {
		out, err = k.decodeZstd(dst[:0], src)
	}
	if err != nil {
		return corrupt("%w", err)
	}
	if len(out) != n || &out[0] != &dst[0] {
		return corrupt("a block has %d bytes and stands for %d", len(out), n)
	}
	return nil
}

func (k *coder) decodeZstd(dst, src []byte) ([]byte, error) {
	if k.decoder == nil {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(BlockSize), zstd.WithDecoderMaxMemory(BlockSize), zstd.WithDecodeAllCapLimit(true))
		if err != nil {
			return nil, err
		}
		k.decoder = d
	}
	return k.decoder.DecodeAll(src, dst)
}

// The decoder of S2 copies repeated data eight bytes at a time, but byte by byte if fewer than ten
// bytes of the block follow. A block that repeats itself to its end, such as zeros, is one such copy.
// Therefore the end of a block is encoded as a literal, which any decoder accepts.
const (
	s2Tail     = 16
	s2TailFrom = 4 << 10 // minimum size of a block whose end is a literal
	s2Literal  = (s2Tail - 1) << 2
)

// encodeS2 compresses src as one block of S2 and returns the block. If dst has a length of at least
// s2.MaxEncodedLen(len(src)) + s2Tail, the block is in the memory of dst; otherwise it may be in
// new memory.
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
	copy(out, after[:is]) // a block begins with its decoded length
	return append(append(out, s2Literal), tail...)
}
