package ringnet

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/internal/memcopy"
	"github.com/tensorpipe-go/tensorpipe/internal/step"
)

// A ring begins with a header, in which what the two ends write stands on
// different cache lines.
const (
	headerSize = 256

	atHead     = 0   // bytes written so far, by the writer
	atFinished = 8   // how the writer ended, by the writer
	atGrown    = 12  // the ring has all of its bytes, by the writer
	atTail     = 64  // bytes read so far, by the reader
	atGone     = 72  // the reader reads no more, by the reader
	atReader   = 128 // the reader sleeps, by both
	atWriter   = 192 // the writer sleeps, by both
)

// How a writer ends.
const (
	running  = iota
	finished // all was written
	reset    // the stream was given up
)

// A stride is what is copied before the other end hears of it, so that both copy at
// once. Short ones let the other end begin soon. Long ones cost less: with each word to
// the other end the writer waits until all that it wrote has reached its cache, and a
// reader close behind takes out of there what it goes on writing to.
const (
	shortStride = 16 << 10
	longStride  = 512 << 10 // of large parts

	large = 1 << 20 // which is more than the cache of one processor keeps
)

// strideOf is for a part of so many bytes, and a ring of such a size.
func strideOf(part int, size uint64) int {
	if part >= large {
		return mostOf(size)
	}
	return min(max(part/4, shortStride), mostOf(size))
}

// mostOf is the most that either end copies at a time: there has to be room for what
// the other one copies meanwhile.
func mostOf(size uint64) int { return min(longStride, int(size)/4) }

// A writer copies without reading what it writes over from so many bytes at a time on.
// A reader copies large parts past the caches: large messages are bounded by what memory
// can move, and this is less.
const (
	unread   = 64 << 10
	uncached = 32 << 10
)

// words are the header of a ring.
type words struct {
	head, tail     *atomic.Uint64
	finished, gone *atomic.Uint32
	grown          *atomic.Uint32
	reader, writer *atomic.Uint32
}

func wordsIn(mem []byte) words {
	u64 := func(at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&mem[at])) }
	u32 := func(at int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&mem[at])) }
	return words{u64(atHead), u64(atTail), u32(atFinished), u32(atGone), u32(atGrown), u32(atReader), u32(atWriter)}
}

// clear makes the header that of a new ring.
func (w words) clear() {
	w.head.Store(0)
	w.tail.Store(0)
	for _, flag := range []*atomic.Uint32{w.finished, w.gone, w.grown, w.reader, w.writer} {
		flag.Store(0)
	}
}

// writerEnd is the writer's end of a ring.
type writerEnd struct {
	words
	data       []byte // its length is a power of two
	size       uint64 // of data, what is in use; a power of two
	head, seen uint64 // bytes written; bytes read, as far as is known
	growth     growth
}

// readerEnd is the reader's end of a ring.
type readerEnd struct {
	words
	data       []byte
	size       uint64
	tail, seen uint64 // bytes read; bytes written, as far as is known
	rest       int    // what is left of a large part
}

// split returns the header and the bytes of the ring that is all of mem.
func split(mem []byte) (words, []byte) { return wordsIn(mem), mem[headerSize:] }

func newWriterEnd(mem []byte) *writerEnd {
	w, data := split(mem)
	return &writerEnd{words: w, data: data, size: startOf(data)}
}

func newReaderEnd(mem []byte) *readerEnd {
	w, data := split(mem)
	return &readerEnd{words: w, data: data, size: startOf(data)}
}

// room is how many bytes can be written now.
func (w *writerEnd) room(want int) (int, error) {
	if n := w.free(); n >= want {
		return n, nil
	}
	tail := w.words.tail.Load()
	if tail-w.seen > w.head-w.seen {
		return 0, fmt.Errorf("%w: read %d bytes of %d", ErrCorrupt, tail, w.head)
	}
	w.seen = tail
	w.grow()
	return w.free(), nil
}

// free is how many bytes can be written, as far as is known.
func (w *writerEnd) free() int {
	if w.growth.due {
		return 0
	}
	return int(w.size - (w.head - w.seen))
}

// put writes what there is room for, a stride at most.
func (w *writerEnd) put(p []byte) (int, error) {
	n := min(len(p), strideOf(len(p), w.size))
	room, err := w.room(n)
	if err != nil {
		return 0, err
	}
	n = min(n, room)
	w.copy(p[:n])
	if n > 0 {
		w.publish()
	}
	return n, nil
}

// putAll writes the pieces as far as there is room, and calls came whenever the
// other end may have something to read.
func (w *writerEnd) putAll(pieces [][]byte, came func()) (total int, err error) {
	news := 0
	for _, p := range pieces {
		stride := strideOf(len(p), w.size)
		for len(p) > 0 {
			want := min(len(p), stride)
			room, err := w.room(want)
			n := min(want, room)
			if n == 0 {
				w.announce(news, came)
				return total, err
			}
			w.copy(p[:n])
			p = p[n:]
			total += n
			if news += n; news >= stride {
				w.announce(news, came)
				news = 0
			}
		}
	}
	w.announce(news, came)
	return total, nil
}

func (w *writerEnd) announce(news int, came func()) {
	if news > 0 {
		w.publish()
		came()
	}
}

// copy copies p, for which there is room, to behind what was written.
func (w *writerEnd) copy(p []byte) {
	move := plain
	if len(p) >= unread {
		move = memcopy.FastString
	}
	at := w.head & (w.size - 1)
	k := move(w.data[at:w.size], p)
	move(w.data, p[k:])
	w.head += uint64(len(p))
}

func plain(dst, src []byte) int { return copy(dst, src) }

// publish shows the other end what was written.
func (w *writerEnd) publish() {
	step.Here()
	w.words.head.Store(w.head)
	step.Here()
}

// there is how many bytes can be read now.
func (r *readerEnd) there() (int, error) {
	if n := r.seen - r.tail; n > 0 {
		return int(n), nil
	}
	head := r.words.head.Load()
	if head == r.tail {
		return 0, nil
	}
	if err := r.resize(); err != nil {
		return 0, err
	}
	if head-r.tail > r.size {
		return 0, fmt.Errorf("%w: wrote %d bytes where %d were read", ErrCorrupt, head, r.tail)
	}
	r.seen = head
	return int(r.seen - r.tail), nil
}

// take reads what is there, a long stride at most.
func (r *readerEnd) take(p []byte) (int, error) {
	there, err := r.there()
	if err != nil {
		return 0, err
	}
	n := min(len(p), there, mostOf(r.size))
	move := plain
	if r.isLarge(p) && n >= uncached {
		move = memcopy.NonTemporal
	}
	at := r.tail & (r.size - 1)
	k := move(p[:n], r.data[at:r.size])
	move(p[k:n], r.data)
	r.tail += uint64(n)
	r.rest -= min(n, r.rest)
	if n > 0 {
		step.Here()
		r.words.tail.Store(r.tail)
		step.Here()
	}
	return n, nil
}

// isLarge reports whether p is for a large part, or for what is left of one. A little of
// it may have been read with what is before it.
func (r *readerEnd) isLarge(p []byte) bool {
	if len(p) > large-shortStride {
		r.rest = len(p)
	}
	return len(p) == r.rest
}

// roomy reports whether a writer that sleeps since the ring was full is to be woken:
// not for a bit of room, since it fills that sooner than it gets to sleep again.
func (r *readerEnd) roomy() bool {
	return r.words.writer.Load() != 0 && r.words.head.Load()-r.tail <= r.size/2
}
