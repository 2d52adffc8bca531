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
	atLevel    = 12  // the region that is written to, by the writer
	atFrom     = 16  // for each region, the first byte that is there, by the writer
	atTail     = 64  // bytes read so far, by the reader
	atGone     = 72  // the reader reads no more, by the reader
	atReader   = 128 // the reader sleeps, by both
	atWriter   = 192 // the writer sleeps, by both

	mostLevels = 4 // regions of a ring
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
func strideOf(part, size int) int {
	if part >= large {
		return mostOf(size)
	}
	return min(max(part/4, shortStride), mostOf(size))
}

// mostOf is the most that either end copies at a time: there has to be room for what
// the other one copies meanwhile.
func mostOf(size int) int { return min(longStride, size/4) }

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
	level          *atomic.Uint32
	reader, writer *atomic.Uint32
	from           [mostLevels]*atomic.Uint64
}

func wordsIn(mem []byte) words {
	u64 := func(at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&mem[at])) }
	u32 := func(at int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&mem[at])) }
	w := words{
		u64(atHead), u64(atTail), u32(atFinished), u32(atGone), u32(atLevel), u32(atReader), u32(atWriter),
		[mostLevels]*atomic.Uint64{},
	}
	for level := range w.from {
		w.from[level] = u64(atFrom + 8*level)
	}
	return w
}

// clear makes the header that of a new ring that begins with such a region.
func (w words) clear(level int) {
	w.head.Store(0)
	w.tail.Store(0)
	for _, flag := range []*atomic.Uint32{w.finished, w.gone, w.reader, w.writer} {
		flag.Store(0)
	}
	for _, from := range w.from {
		from.Store(0)
	}
	w.level.Store(uint32(level))
}

// writerEnd is the writer's end of a ring.
type writerEnd struct {
	words
	kind       ringKind
	all        regions
	region     []byte // that is written to; its length is a power of two
	from       uint64 // the first byte written there
	head, seen uint64 // bytes written; bytes read, as far as is known
	growth     growth
}

// readerEnd is the reader's end of a ring.
type readerEnd struct {
	words
	all        regions
	first      int    // level that the ring begins with
	level      int    // of region
	region     []byte // that is read from
	tail, seen uint64 // bytes read; bytes written there, as far as is known
	rest       int    // what is left of a large part
}

// newWriterEnd is the writer's end of a ring that begins with the region of that level.
func newWriterEnd(r ring, level int) *writerEnd {
	return &writerEnd{
		words: wordsIn(r.header), kind: r.kind, all: r.regions, region: r.regions[level],
		growth: growth{first: level, level: level},
	}
}

func newReaderEnd(r ring, level int) *readerEnd {
	return &readerEnd{words: wordsIn(r.header), all: r.regions, region: r.regions[level], first: level, level: level}
}

// room returns how many bytes can be written now. The writer wants to write some next, and
// has left to write that many in all.
func (w *writerEnd) room(want, left int) (int, error) {
	if n := w.free(); n >= want {
		return n, nil
	}
	tail := w.words.tail.Load()
	if tail-w.seen > w.head-w.seen {
		return 0, fmt.Errorf("%w: read %d bytes of %d", ErrCorrupt, tail, w.head)
	}
	w.seen = tail
	w.grow(left)
	return w.free(), nil
}

// free is how many bytes can be written, as far as is known.
func (w *writerEnd) free() int { return len(w.region) - int(w.head-max(w.seen, w.from)) }

// put writes what there is room for, a stride at most.
func (w *writerEnd) put(p []byte) (int, error) {
	n := min(len(p), strideOf(len(p), len(w.region)))
	room, err := w.room(n, len(p))
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
	left, news := 0, 0
	for _, p := range pieces {
		left += len(p)
	}
	for _, p := range pieces {
		stride := strideOf(len(p), len(w.region))
		for len(p) > 0 {
			want := min(len(p), stride)
			room, err := w.room(want, left)
			n := min(want, room)
			if n == 0 {
				w.announce(news, came)
				return total, err
			}
			w.copy(p[:n])
			p = p[n:]
			total += n
			left -= n
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
	at := w.head & uint64(len(w.region)-1)
	k := move(w.region[at:], p)
	move(w.region, p[k:])
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
	end, err := r.follow(head)
	if err != nil {
		return 0, err
	}
	if end-r.tail > uint64(len(r.region)) {
		return 0, fmt.Errorf("%w: wrote %d bytes where %d were read", ErrCorrupt, end, r.tail)
	}
	r.seen = end
	return int(r.seen - r.tail), nil
}

// take reads what is there, a long stride at most.
func (r *readerEnd) take(p []byte) (int, error) {
	there, err := r.there()
	if err != nil {
		return 0, err
	}
	n := min(len(p), there, mostOf(len(r.region)))
	move := plain
	if r.isLarge(p) && n >= uncached {
		move = memcopy.NonTemporal
	}
	at := r.tail & uint64(len(r.region)-1)
	k := move(p[:n], r.region[at:])
	move(p[k:n], r.region)
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
	return r.words.writer.Load() != 0 && r.words.head.Load()-r.tail <= uint64(len(r.region)/2)
}
