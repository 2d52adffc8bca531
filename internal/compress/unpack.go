package compress

import "encoding/binary"

// Unpack decodes form into the memory of the part, which it fills, and which
// may lie in pieces. check is called before each block and ends it with an
// error. Other errors match ErrCorrupt. What the memory holds after an error is
// anything.
func (c *Coders) Unpack(codec Codec, part [][]byte, form []byte, check func() error) error {
	u := unpacker{coders: c, codec: codec, size: length(part), form: len(form), dst: cursorOf(part)}
	u.src, u.apart = cursorOf([][]byte{form}), true
	return u.run(check)
}

// UnpackInPlace is Unpack of a form that stands in the last n bytes of the part.
func (c *Coders) UnpackInPlace(codec Codec, part [][]byte, n int, check func() error) error {
	size := length(part)
	if n > size {
		return corrupt("%d bytes for a part of %d", n, size)
	}
	u := unpacker{coders: c, codec: codec, size: size, form: n, dst: cursorOf(part), src: cursorOf(part)}
	u.src.skip(size - n)
	u.read = size - n
	return u.run(check)
}

// unpacker decodes one part.
type unpacker struct {
	coders     *Coders
	codec      Codec
	size, form int // bytes of the part, and of its form

	dst, src      cursor
	apart         bool // dst and src are not the same memory
	written, read int  // how far they have come; read is meaningless if apart
}

func (u *unpacker) run(check func() error) error {
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
		if err := u.coders.use(func(k *coder) error { return u.block(k, size, coded) }); err != nil {
			return err
		}
		table = table[entrySize:]
		left -= size
	}
	return nil
}

// table takes the lengths of the blocks, and checks that none is longer than
// what it stands for, and that they make up the form: upon that rests the
// decoding in place.
func (u *unpacker) table() ([]byte, error) {
	n := blocks(u.size) * entrySize
	if u.form >= u.size || u.form < n {
		return nil, corrupt("%d bytes for a part of %d", u.form, u.size)
	}
	table := make([]byte, n) // a copy: the first block may be written over it
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
	if total != u.form {
		return nil, corrupt("the blocks make %d bytes, there are %d", total, u.form)
	}
	return table, nil
}

// block decodes one block, of coded bytes, that stands for size.
func (u *unpacker) block(k *coder, size, coded int) error {
	src := u.src.next(coded, k.coded[:cap(k.coded)])
	if !u.apart && u.read < u.written+size {
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
