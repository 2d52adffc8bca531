package compress

import "encoding/binary"

// slabSize is the size of the pieces of memory that hold compressed bytes.
const slabSize = 256 << 10

// leastGain is the part of a block, or of all, by which compressing must make
// it shorter to be worth the decoding.
const leastGain = 32

// Packing holds the compressed bytes of one message. It is no more than what
// was given to Add, and one slab. It is not safe for concurrent use.
type Packing struct {
	coders *Coders
	slabs  []*[slabSize]byte
	used   int // bytes of the last slab
}

// NewPacking returns an empty packing. The caller must release it.
func (c *Coders) NewPacking() *Packing { return &Packing{coders: c, used: slabSize} }

// Bytes is the memory that p holds, in bytes.
func (p *Packing) Bytes() int { return len(p.slabs) * slabSize }

// Release gives the memory back. What Add returned must not be used any more.
func (p *Packing) Release() {
	for _, s := range p.slabs {
		p.coders.slabs.Put(s)
	}
	p.slabs, p.used = nil, slabSize
}

// Add compresses a part, which lies in segments, and returns its compressed form,
// in pieces: in memory of p, valid until Release, and, where that gained
// nothing, in the segments themselves. It returns nothing if all of it gained
// nothing. check is called before each block and ends it with an error.
func (p *Packing) Add(codec Codec, segments [][]byte, check func() error) (form [][]byte, err error) {
	n := length(segments)
	mark := *p
	w := writer{packing: p, form: make([][]byte, 1, 4)}
	table := make([]byte, 0, blocks(n)*entrySize)
	src := cursorOf(segments)
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
	w.form[0] = table
	return w.form, nil
}

func gains(coded, plain int) bool { return coded <= plain-max(1, plain/leastGain) }

// rewind forgets what was added since mark.
func (p *Packing) rewind(mark Packing) {
	for _, s := range p.slabs[len(mark.slabs):] {
		p.coders.slabs.Put(s)
	}
	p.slabs, p.used = p.slabs[:len(mark.slabs)], mark.used
}

// writer puts together the form of one part.
type writer struct {
	packing *Packing
	form    [][]byte
	open    bool // the last piece ends where the slab is filled next
}

// block adds the next block, which stands for size bytes of src, and returns
// its length.
func (w *writer) block(codec Codec, src *cursor, size int) (n int, err error) {
	err = w.packing.coders.use(func(k *coder) error {
		where := *src
		coded, err := k.encode(codec, src.next(size, k.plain[:]))
		if err != nil {
			return err
		}
		if n = len(coded); gains(n, size) {
			w.keep(coded)
			return nil
		}
		n = size
		where.each(size, func(_ int, p []byte) { w.form = append(w.form, p) })
		w.open = false
		return nil
	})
	return n, err
}

// keep copies p into slabs.
func (w *writer) keep(p []byte) {
	for len(p) > 0 {
		if w.packing.used == slabSize {
			w.packing.slabs = append(w.packing.slabs, w.packing.coders.slabs.Get().(*[slabSize]byte))
			w.packing.used = 0
			w.open = false
		}
		slab, start := w.packing.slabs[len(w.packing.slabs)-1], w.packing.used
		n := copy(slab[start:], p)
		w.packing.used += n
		if w.open {
			last := &w.form[len(w.form)-1]
			*last = (*last)[:len(*last)+n]
		} else {
			w.form = append(w.form, slab[start:start+n])
			w.open = true
		}
		p = p[n:]
	}
}
