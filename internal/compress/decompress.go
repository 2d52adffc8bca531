package compress

import (
	"encoding/binary"
)

// Decompress decompresses compressed, the whole compressed form of a part, into part, the memory of
// the part, and fills it. compressed and part must not overlap. codec must be S2 or Zstd.
// Decompress calls check before each block; if check returns an error, it stops and returns that
// error. Other errors match ErrCorrupt. After an error the contents of part are undefined.
func (c *Coders) Decompress(codec Codec, part [][]byte, compressed []byte, check func() error) error {
	u := decompressor{coders: c, codec: codec, size: length(part), compressed: len(compressed), dst: newCursor(part)}
	u.src, u.separate = newCursor([][]byte{compressed}), true
	return u.run(check)
}

// DecompressInPlace decompresses the compressed form of a part, which is in the last n bytes of
// part, the memory of the part, and fills part. It overwrites the compressed form. codec must be S2
// or Zstd. It calls check before each block; if check returns an error, it stops and returns that
// error. Other errors match ErrCorrupt. After an error the contents of part are undefined.
func (c *Coders) DecompressInPlace(codec Codec, part [][]byte, n int, check func() error) error {
	size := length(part)
	if n > size {
		return corrupt("%d bytes for a part of %d", n, size)
	}
	u := decompressor{coders: c, codec: codec, size: size, compressed: n, dst: newCursor(part), src: newCursor(part)}
	u.src.skip(size - n)
	u.read = size - n
	return u.run(check)
}

// decompressor decompresses one part.
type decompressor struct {
	coders           *Coders
	codec            Codec
	size, compressed int // bytes of the part, and of its compressed form

	dst, src      cursor
	separate      bool // dst and src are different memory
	written, read int  // offsets in the part's memory; read is unused if separate is set
}

func (u *decompressor) run(check func() error) error {
	table, err := u.table()
	if err != nil {
		return err
	}
	for left := u.size; left > 0; {
		if err := check(); err != nil {
			return err
		}
		size := min(left, BlockSize)
		coded := int(binary.LittleEndian.Uint32(table))
		if err := u.coders.withCoder(func(k *coder) error { return u.block(k, size, coded) }); err != nil {
			return err
		}
		table = table[entrySize:]
		left -= size
	}
	return nil
}

// table reads the lengths of the blocks from u.src and returns a copy of them, 4 bytes each. The
// error matches ErrCorrupt: the compressed form is not shorter than the part, the lengths do not
// add up to it, or a block has no bytes or more bytes than it represents. Decompression in place
// depends on this check.
func (u *decompressor) table() ([]byte, error) {
	n := blocks(u.size) * entrySize
	if u.compressed >= u.size || u.compressed < n {
		return nil, corrupt("%d bytes for a part of %d", u.compressed, u.size)
	}
	table := make([]byte, n) // a copy, because the first block may overwrite it
	u.src.each(n, func(at int, p []byte) { copy(table[at:], p) })
	u.read += n
	total := n
	for left, rest := u.size, table; left > 0; rest = rest[entrySize:] {
		size, coded := min(left, BlockSize), binary.LittleEndian.Uint32(rest)
		if coded == 0 || uint64(coded) > uint64(size) {
			return nil, corrupt("a block of %d bytes stands for %d", coded, size)
		}
		total += int(coded)
		left -= size
	}
	if total != u.compressed {
		return nil, corrupt("the blocks make %d bytes, there are %d", total, u.compressed)
	}
	return table, nil
}

// block decompresses the next block of u.src to u.dst with coder k, and advances both. The block
// has coded bytes and represents size bytes. If coded equals size, the block is a copy of the
// bytes. The error matches ErrCorrupt.
func (u *decompressor) block(k *coder, size, coded int) error {
	src := u.src.next(coded, k.coded[:cap(k.coded)])
	if !u.separate && u.read < u.written+size {
		src = k.coded[:copy(k.coded[:cap(k.coded)], src)]
	}
	u.read += coded
	u.written += size
	if coded == size {
		u.dst.each(size, func(at int, p []byte) { copy(p, src[at:]) })
		return nil
	}
	if p := u.dst.piecewise(size); len(p) == size {
		u.dst.skip(size)
		return k.decode(u.codec, p, src)
	}
	if err := k.decode(u.codec, k.plain[:size], src); err != nil {
		return err
	}
	u.dst.each(size, func(at int, p []byte) { copy(p, k.plain[at:]) })
	return nil
}

// cursor is a position in memory that consists of pieces.
type cursor struct {
	piece []byte
	more  [][]byte
}

func newCursor(segments [][]byte) cursor { return cursor{more: segments} }

// next advances c by n bytes and returns these bytes, which must exist. If they are contiguous the
// result is a slice of c's memory. Otherwise it is a copy in scratchBuf, which must have a length
// of at least n.
func (c *cursor) next(n int, scratchBuf []byte) []byte {
	if p := c.piecewise(n); len(p) == n {
		c.piece = c.piece[n:]
		return p
	}
	scratchBuf = scratchBuf[:n]
	c.each(n, func(at int, p []byte) { copy(scratchBuf[at:], p) })
	return scratchBuf
}

// piecewise returns the contiguous bytes that come next, at most n, as a slice of c's memory. It
// does not advance c past them. The result is empty at the end of the memory, or if n is 0.
func (c *cursor) piecewise(n int) []byte {
	for len(c.piece) == 0 && len(c.more) > 0 {
		c.piece, c.more = c.more[0], c.more[1:]
	}
	return c.piece[:min(n, len(c.piece)):min(n, len(c.piece))]
}

// each advances c by n bytes, which must exist. It calls f for each contiguous piece p of these
// bytes, in order; at is the offset of p within the n bytes. p is a slice of c's memory.
func (c *cursor) each(n int, f func(at int, p []byte)) {
	for at := 0; at < n; {
		p := c.piecewise(n - at)
		f(at, p)
		c.piece = c.piece[len(p):]
		at += len(p)
	}
}

// skip advances c by n bytes, which must exist.
func (c *cursor) skip(n int) { c.each(n, func(int, []byte) {}) }

func length(segments [][]byte) (n int) {
	for _, s := range segments {
		n += len(s)
	}
	return n
}
