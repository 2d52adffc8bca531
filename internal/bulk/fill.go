package bulk

import "github.com/tensorpipe-go/tensorpipe/internal/native"

// fill ends the chunk that was interrupted when n bytes of a turn had left, with
// bytes of the writer's own. Of the chunks behind it nothing has left, and they
// never begin.
func (w *writer) fill(n int) error {
	i := 0
	for i < turnChunks && n >= w.frames[i].size() {
		n -= w.frames[i].size()
		i++
	}
	if n == 0 {
		return nil
	}
	_, err := w.write(w.frames[i].rest(n))
	return err
}

func (f *framed) size() int { return len(f.header) + f.length + len(f.trailer) }

// rest is what follows the first n bytes of a chunk that its sender gave up. A
// trailer that has begun to leave has said that the chunk is valid, and so it
// is.
func (f *framed) rest(n int) [][]byte {
	if n <= len(f.header)+f.length {
		native.ChunkTrailer{Void: true}.Append(f.trailer[:0])
	}
	pieces := [][]byte{f.header[min(n, len(f.header)):]}
	n = max(n-len(f.header), 0)
	pieces = append(pieces, zeros(f.length-min(n, f.length))...)
	return append(pieces, f.trailer[max(n-f.length, 0):])
}

// zeros returns n bytes as the same few again and again.
func zeros(n int) (pieces [][]byte) {
	page := make([]byte, min(n, 32<<10))
	for n > 0 {
		p := page[:min(n, len(page))]
		pieces = append(pieces, p)
		n -= len(p)
	}
	return pieces
}
