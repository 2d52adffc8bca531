package compress

import (
	"encoding/binary"
)

// slabSize is the size of the buffers that hold compressed bytes.
const slabSize = 256 << 10

// minGain is the reciprocal of the fraction by which compression must shorten a block, or a part, to be
// worth decompressing.
const minGain = 32

// Compressor holds the compressed bytes of one message. Its memory is at most that of the added parts
// plus one slab. It is not safe for concurrent use.
type Compressor struct {
	coders *Coders
	slabs  []*[slabSize]byte
	used   int // used bytes of the last slab
}

// NewCompressor returns an empty Compressor, which compresses with c. The caller must call Release
// when it no longer needs the compressed bytes.
func (c *Coders) NewCompressor() *Compressor { return &Compressor{coders: c, used: slabSize} }

// Bytes returns the size in bytes of the buffers that p holds until Release, used or not.
func (p *Compressor) Bytes() int { return len(p.slabs) * slabSize }

// Release empties p and gives its memory back to its Coders. Results of Add must not be used after
// that. p may be used again.
func (p *Compressor) Release() {
	for _, s := range p.slabs {
		p.coders.slabs.Put(s)
	}
	p.slabs, p.used = nil, slabSize
}

// Add compresses a part, whose memory is segments, with codec, which must be S2 or Zstd, and
// returns the compressed form in pieces. The pieces are valid until Release. Blocks that
// compression did not shorten enough are pieces of segments, not copies, so the caller must not
// change segments while it uses the result.
//
// If compression did not shorten the part enough, both results are nil. Add calls check before each
// block; if check returns an error, Add stops and returns that error. Other errors are those of the
// encoder. If it returns no pieces, p is as it was before.
func (p *Compressor) Add(codec Codec, segments [][]byte, check func() error) (compressed [][]byte, err error) {
	n := length(segments)
	mark := *p
	w := writer{compressor: p, compressed: make([][]byte, 1, 4)}
	table := make([]byte, 0, blocks(n)*entrySize)
	src := newCursor(segments)
	total := cap(table)
	for left := n; left > 0; {
		if err := check(); err != nil {
			p.rewind(mark)
			return nil, err
		}
		size := min(left, BlockSize)
		coded, err := w.block(codec, &src, size)
		if err != nil {
			p.rewind(mark)
			return nil, err
		}
		table = binary.LittleEndian.AppendUint32(table, uint32(coded))
		total += coded
		left -= size
	}
	if !gains(total, n) {
		p.rewind(mark)
		return nil, nil
	}
	w.compressed[0] = table
	return w.compressed, nil
}

func gains(coded, plain int) bool { return coded <= plain-max(1, plain/minGain) }

// rewind resets p to mark, an earlier copy of *p. It gives the memory that p has acquired since
// then back to the Coders.
func (p *Compressor) rewind(mark Compressor) {
	for _, s := range p.slabs[len(mark.slabs):] {
		p.coders.slabs.Put(s)
	}
	p.slabs, p.used = p.slabs[:len(mark.slabs)], mark.used
}

// writer assembles the compressed form of one part in memory of a Compressor.
type writer struct {
	compressor *Compressor
	compressed [][]byte
	open       bool // the last piece ends at the free space of the last slab
}

// block encodes the next size bytes of src as a block, advances src past them, appends the block to
// the compressed form, and returns the block's length. If compression does not shorten the bytes
// enough, it appends pieces of src's memory, without copying them, and returns size. The error is
// that of the encoder.
func (w *writer) block(codec Codec, src *cursor, size int) (n int, err error) {
	err = w.compressor.coders.withCoder(func(k *coder) error {
		where := *src
		coded, err := k.encode(codec, src.next(size, k.plain[:]))
		if err != nil {
			return err
		}
		if n = len(coded); gains(n, size) {
			w.store(coded)
			return nil
		}
		n = size
		where.each(size, func(_ int, p []byte) { w.compressed = append(w.compressed, p) })
		w.open = false
		return nil
	})
	return n, err
}

// store copies p to the end of the Compressor's slabs, with a new slab when one is full, and
// appends the copy to the compressed form.
func (w *writer) store(p []byte) {
	for len(p) > 0 {
		if w.compressor.used == slabSize {
			w.compressor.slabs = append(w.compressor.slabs, w.compressor.coders.slabs.Get().(*[slabSize]byte))
			w.compressor.used = 0
			w.open = false
		}
		slab, start := w.compressor.slabs[len(w.compressor.slabs)-1], w.compressor.used
		n := copy(slab[start:], p)
		w.compressor.used += n
		if w.open {
			last := &w.compressed[len(w.compressed)-1]
			*last = (*last)[:len(*last)+n]
		} else {
			w.compressed = append(w.compressed, slab[start:start+n])
			w.open = true
		}
		p = p[n:]
	}
}
