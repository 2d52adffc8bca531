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

// NewCompressor returns an empty Compressor, which uses c. The caller must release it.
func (c *Coders) NewCompressor() *Compressor { return &Compressor{coders: c, used: slabSize} }

// Bytes returns the size in bytes of the memory that p holds.
func (p *Compressor) Bytes() int { return len(p.slabs) * slabSize }

// Release gives the memory of p back to its Coders. Results of Add must not be used any more. p is
// empty then, and may be used again.
func (p *Compressor) Release() {
	for _, s := range p.slabs {
		p.coders.slabs.Put(s)
	}
	p.slabs, p.used = nil, slabSize
}

// Add compresses a part, whose memory is segments, and returns the compressed form in pieces. The
// pieces are valid until Release. Blocks that compression did not shorten enough are pieces of
// segments, not copies, so the caller must not change segments while it uses the result.
//
// If compression did not shorten the part enough, Add returns nil without an error. It calls check
// before each block, and returns its error. Other errors are those of the encoder.
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

// rewind resets p to mark, an earlier copy of *p, and gives the memory that was added since then back
// to the Coders.
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

// block encodes the next size bytes of src as a block, appends it to the compressed form, and returns
// its length. A block that compression does not shorten enough is appended as pieces of src, not
// copied.
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

// store copies p to the end of the slabs, and appends it to the compressed form.
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
