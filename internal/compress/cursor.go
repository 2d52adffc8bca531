package compress

// cursor is a position in memory that lies in pieces.
type cursor struct {
	piece []byte
	more  [][]byte
}

func cursorOf(segments [][]byte) cursor { return cursor{more: segments} }

// next moves behind n bytes, which there are, and returns them: where they lie
// if that is in one piece, else a copy in aside.
func (c *cursor) next(n int, aside []byte) []byte {
	if p := c.piecewise(n); len(p) == n {
		c.piece = c.piece[n:]
		return p
	}
	aside = aside[:n]
	c.each(n, func(at int, p []byte) { copy(aside[at:], p) })
	return aside
}

// piecewise returns the front of the next n bytes that is in one piece.
func (c *cursor) piecewise(n int) []byte {
	for len(c.piece) == 0 && len(c.more) > 0 {
		c.piece, c.more = c.more[0], c.more[1:]
	}
	return c.piece[:min(n, len(c.piece)):min(n, len(c.piece))]
}

// each moves behind n bytes, which there are, and shows them to f piece by
// piece.
func (c *cursor) each(n int, f func(at int, p []byte)) {
	for at := 0; at < n; {
		p := c.piecewise(n - at)
		f(at, p)
		c.piece = c.piece[len(p):]
		at += len(p)
	}
}

// skip moves behind n bytes.
func (c *cursor) skip(n int) { c.each(n, func(int, []byte) {}) }

func length(segments [][]byte) (n int) {
	for _, s := range segments {
		n += len(s)
	}
	return n
}
