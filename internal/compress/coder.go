package compress

import (
	"sync"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

// Coders are the encoders and decoders that many share, of a bounded number.
// All methods may be called concurrently.
type Coders struct {
	free  chan *coder // nil stands for one that has not been made yet
	slabs sync.Pool
}

// New returns Coders for n calls at a time; further ones wait for the block
// that another is at. They take some MiB each, from their first use on.
func New(n int) *Coders {
	c := &Coders{free: make(chan *coder, n)}
	for range n {
		c.free <- nil
	}
	c.slabs.New = func() any { return new([slabSize]byte) }
	return c
}

// use runs f with a coder that nobody else has.
func (c *Coders) use(f func(*coder) error) error {
	k := <-c.free
	if k == nil {
		k = &coder{coded: make([]byte, 0, s2.MaxEncodedLen(BlockSize)+s2Tail)}
	}
	defer func() { c.free <- k }()
	return f(k)
}

// coder encodes or decodes one block at a time.
type coder struct {
	coded   []byte          // what has been encoded, or moved aside to be decoded
	plain   [BlockSize]byte // a block of memory that lies in pieces
	encoder *zstd.Encoder   // made when first needed, like decoder
	decoder *zstd.Decoder
}

// encode compresses src. The result is valid until the next call.
func (k *coder) encode(codec Codec, src []byte) ([]byte, error) {
	if codec == S2 {
		return encodeS2(k.coded[:cap(k.coded)], src), nil
	}
	if k.encoder == nil {
		e, err := newZstd()
		if err != nil {
			return nil, err
		}
		k.encoder = e
	}
	return k.encoder.EncodeAll(src, k.coded[:0]), nil
}

// newZstd returns an encoder that is fast, and yet looks at what repeats nothing:
// weights do not, but their exponents are much alike.
func newZstd() (*zstd.Encoder, error) {
	return zstd.NewWriter(nil,
		zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithAllLitEntropyCompression(true),
		zstd.WithSingleSegment(true),
		zstd.WithWindowSize(BlockSize),
		zstd.WithLowerEncoderMem(true),
		zstd.WithEncoderCRC(false), // the frames of the dialect have one, where it is wanted
	)
}

// decode decompresses src into dst, which it fills. The two do not overlap.
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
