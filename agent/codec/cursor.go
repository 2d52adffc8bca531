package codec

import (
	"encoding/binary"
	"math"
)

// cursor takes numbers and bytes off the front of a piece of a message.
type cursor struct {
	data []byte
	pos  int
}

func (c *cursor) left() int { return len(c.data) - c.pos }

func (c *cursor) uvarint() (uint64, error) {
	if c.pos < len(c.data) && c.data[c.pos] < 0x80 {
		c.pos++
		return uint64(c.data[c.pos-1]), nil
	}
	v, n := binary.Uvarint(c.data[c.pos:])
	if n <= 0 {
		return 0, corrupt("byte %d: no number", c.pos)
	}
	c.pos += n
	return v, nil
}

func (c *cursor) varint() (int64, error) {
	v, err := c.uvarint()
	return int64(v>>1) ^ -int64(v&1), err
}

// size is a number that an int can hold.
func (c *cursor) size() (int, error) {
	v, err := c.uvarint()
	if err == nil && v > math.MaxInt {
		err = corrupt("byte %d: the number %d is no size", c.pos, v)
	}
	return int(v), err
}

// count is a number of things of which each takes at least so many bytes of
// those that are left.
func (c *cursor) count(each int) (int, error) {
	n, err := c.size()
	if err == nil && n > c.left()/each {
		err = corrupt("byte %d: %d things of at least %d bytes in %d bytes", c.pos, n, each, c.left())
	}
	return n, err
}

// take is the next n bytes, not a copy.
func (c *cursor) take(n int) ([]byte, error) {
	if n < 0 || n > c.left() {
		return nil, corrupt("byte %d: %d bytes of %d that are left", c.pos, n, c.left())
	}
	p := c.data[c.pos : c.pos+n : c.pos+n]
	c.pos += n
	return p, nil
}

// text is bytes behind their length, not a copy.
func (c *cursor) text() ([]byte, error) {
	n, err := c.size()
	if err != nil {
		return nil, err
	}
	return c.take(n)
}

func (c *cursor) byte() (byte, error) {
	if c.pos >= len(c.data) {
		return 0, corrupt("byte %d: the end", c.pos)
	}
	c.pos++
	return c.data[c.pos-1], nil
}
