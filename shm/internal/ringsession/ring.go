package ringsession

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/memcopy"
)

// Offsets in the header of a ring. What the two ends write is on different cache lines.
const (
	ringHeaderSize = 256

	offsetHead          = 0   // number of bytes written; the writer writes it
	offsetWriterState   = 8   // writing, finished or reset; the writer writes it
	offsetLevel         = 12  // level of the region that is written to; the writer writes it
	offsetStarts        = 16  // by level, number of the first byte in each region; the writer writes it
	offsetTail          = 64  // number of bytes read; the reader writes it
	offsetReaderClosed  = 72  // 1: the reader reads no more; the reader writes it
	offsetReaderBlocked = 128 // 1: the reader waits for a doorbell; both write it
	offsetWriterBlocked = 192 // 1: the writer waits for a doorbell; both write it

	maxRegions = 4
)

// States of a writer.
const (
	writing  = iota
	finished // everything was written
	reset    // the stream was refused or aborted
)

// ringHeader is the header of a ring: pointers to its fields in shared memory, which both ends
// access. It is valid while that memory is mapped.
type ringHeader struct {
	head, tail                   *atomic.Uint64
	writerState, readerClosed    *atomic.Uint32
	level                        *atomic.Uint32
	readerBlocked, writerBlocked *atomic.Uint32
	starts                       [maxRegions]*atomic.Uint64
}

func headerOf(mem []byte) ringHeader {
	u64 := func(at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&mem[at])) }
	u32 := func(at int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&mem[at])) }
	h := ringHeader{
		head: u64(offsetHead), tail: u64(offsetTail),
		writerState: u32(offsetWriterState), readerClosed: u32(offsetReaderClosed),
		level:         u32(offsetLevel),
		readerBlocked: u32(offsetReaderBlocked), writerBlocked: u32(offsetWriterBlocked),
	}
	for level := range h.starts {
		h.starts[level] = u64(offsetStarts + 8*level)
	}
	return h
}

// init overwrites the header, in shared memory, with that of an empty ring. Its writer and reader
// begin with the region whose level (index) is level. Neither end may be using the ring.
func (h ringHeader) init(level int) {
	h.head.Store(0)
	h.tail.Store(0)
	for _, flag := range []*atomic.Uint32{h.writerState, h.readerClosed, h.readerBlocked, h.writerBlocked} {
		flag.Store(0)
	}
	for _, start := range h.starts {
		start.Store(0)
	}
	h.level.Store(uint32(level))
}

// A batch is what one end copies before it publishes its counter, so that both ends copy at
// the same time. After a short batch the other end can begin soon. Long batches cost less:
// publishing stalls the writer until all its writes have reached its cache, and a reader
// close to the writer takes cache lines that the writer is about to write to.
const (
	shortBatch = 16 << 10
	longBatch  = 256 << 10

	// largePart is the size from which a part is copied in long batches: it does not fit
	// into the cache of one core.
	largePart = 1 << 20
)

// batchSize returns the largest number of bytes that one end copies before it publishes them. part
// is the size of the part of a message that is copied, and region that of the ring's region, in
// bytes.
func batchSize(part, region int) int {
	if part >= largePart {
		return maxBatch(region)
	}
	return min(max(part/4, shortBatch), maxBatch(region))
}

// maxBatch returns the largest number of bytes that one end copies before it publishes them, in a
// region of a ring with region bytes. It leaves space for the bytes that the other end copies at
// the same time.
func maxBatch(region int) int { return min(longBatch, region/4) }

const (
	// minStringCopy is the size in bytes from which a writer copies without reading the
	// memory that it overwrites.
	minStringCopy = 64 << 10

	// minNonTemporal is the size from which a reader copies a large part past the caches.
	// Large messages are bounded by the memory's bandwidth, of which this takes less.
	minNonTemporal = 32 << 10
)

// ringWriter is the writer's end of a ring. One goroutine at a time uses it. Counters and
// positions are numbers of bytes since the ring was made; the byte with number n lies at
// index n modulo the size of its region.
type ringWriter struct {
	header   ringHeader
	kind     ringKind
	regions  regions
	region   []byte // the current one; see growth.go
	start    uint64 // number of the first byte in region
	head     uint64 // bytes written
	seenTail uint64 // bytes read, when the header was last checked
	growth   growth
}

// ringReader is the reader's end of a ring. One goroutine at a time uses it. Counters are numbers
// of bytes since the ring was made, as in ringWriter.
type ringReader struct {
	header    ringHeader
	regions   regions
	first     int    // level that the ring began with
	level     int    // of the current region
	region    []byte // the current one
	tail      uint64 // bytes read
	seenHead  uint64 // bytes written to region, when the header was last checked
	remaining int    // bytes of the large part that is being read
}

// newRingWriter returns the writer's end of the empty ring r, which begins with the region whose
// level (index) is level. It uses the memory of r, which must stay mapped.
func newRingWriter(r ring, level int) *ringWriter {
	return &ringWriter{
		header: headerOf(r.header), kind: r.kind, regions: r.regions, region: r.regions[level],
		growth: growth{first: level, level: level},
	}
}

// newRingReader returns the reader's end of the empty ring r, which begins with the region whose
// level (index) is level. It uses the memory of r, which must stay mapped.
func newRingReader(r ring, level int) *ringReader {
	return &ringReader{
		header: headerOf(r.header), regions: r.regions, region: r.regions[level],
		first: level, level: level,
	}
}

// space returns how many bytes can be written to the current region, possibly 0 or fewer than want.
// If the space that w knows of is less than want, it reads the reader's counter again, and may make
// a larger region the current one (grow). remaining is how many bytes the current write has still
// to write. The error matches ErrCorrupt.
func (w *ringWriter) space(want, remaining int) (int, error) {
	if n := w.knownSpace(); n >= want {
		return n, nil
	}
	tail := w.header.tail.Load()
	if tail-w.seenTail > w.head-w.seenTail {
		return 0, fmt.Errorf("%w: read %d bytes of %d", ErrCorrupt, tail, w.head)
	}
	w.seenTail = tail
	w.grow(remaining)
	return w.knownSpace(), nil
}

// knownSpace returns how many bytes can be written to the current region, according to the reader's
// counter as w has last read it. There may be more space by now.
func (w *ringWriter) knownSpace() int { return len(w.region) - int(w.head-max(w.seenTail, w.start)) }

// write copies bytes of p to the ring as far as there is space, at most one batch (batchSize), and
// publishes them. It returns how many, possibly 0. It does not wake the reader. The error matches
// ErrCorrupt.
func (w *ringWriter) write(p []byte) (int, error) {
	n := min(len(p), batchSize(len(p), len(w.region)))
	space, err := w.space(n, len(p))
	if err != nil {
		return 0, err
	}
	n = min(n, space)
	w.append(p[:n])
	if n > 0 {
		w.publish()
	}
	return n, nil
}

// writeAll copies the pieces in order as far as there is space. It publishes the bytes batch by
// batch, and calls the function published after each batch, to wake the reader. It returns how many
// bytes it wrote, all of which are published, also if it fails. The error matches ErrCorrupt. It
// keeps none of the pieces.
func (w *ringWriter) writeAll(pieces [][]byte, published func()) (total int, err error) {
	remaining, pending := 0, 0
	for _, p := range pieces {
		remaining += len(p)
	}
	flush := func() {
		if pending > 0 {
			w.publish()
			published()
			pending = 0
		}
	}
	for _, p := range pieces {
		batch := batchSize(len(p), len(w.region))
		for len(p) > 0 {
			want := min(len(p), batch)
			space, err := w.space(want, remaining)
			n := min(want, space)
			if n == 0 {
				flush()
				return total, err
			}
			w.append(p[:n])
			p = p[n:]
			total += n
			remaining -= n
			if pending += n; pending >= batch {
				flush()
			}
		}
	}
	flush()
	return total, nil
}

// append copies all of p to the current region and does not publish it. There must be space for all
// of p.
func (w *ringWriter) append(p []byte) {
	move := copyBytes
	if len(p) >= minStringCopy {
		move = memcopy.FastString
	}
	at := w.head & uint64(len(w.region)-1)
	k := move(w.region[at:], p)
	move(w.region, p[k:])
	w.head += uint64(len(p))
}

func copyBytes(dst, src []byte) int { return copy(dst, src) }

// publish makes the bytes written so far visible to the reader. It does not wake the reader.
func (w *ringWriter) publish() {
	failpoint.Here()
	w.header.head.Store(w.head)
	failpoint.Here()
}

// available returns how many bytes can be read from the region that contains the next byte,
// possibly 0. It makes that region the current one. The error is that of locate, or matches
// ErrCorrupt.
func (r *ringReader) available() (int, error) {
	if n := r.seenHead - r.tail; n > 0 {
		return int(n), nil
	}
	head := r.header.head.Load()
	if head == r.tail {
		return 0, nil
	}
	end, err := r.locate(head)
	if err != nil {
		return 0, err
	}
	if end-r.tail > uint64(len(r.region)) {
		return 0, fmt.Errorf("%w: wrote %d bytes where %d were read", ErrCorrupt, end, r.tail)
	}
	r.seenHead = end
	return int(r.seenHead - r.tail), nil
}

// read copies available bytes into p, at most a quarter of the current region and 256 KiB, lets the
// writer reuse their space, and returns how many, possibly 0. It does not wake the writer. The
// error is that of available.
func (r *ringReader) read(p []byte) (int, error) {
	available, err := r.available()
	if err != nil {
		return 0, err
	}
	n := min(len(p), available, maxBatch(len(r.region)))
	move := copyBytes
	if r.inLargePart(p) && n >= minNonTemporal {
		move = memcopy.NonTemporal
	}
	at := r.tail & uint64(len(r.region)-1)
	k := move(p[:n], r.region[at:])
	move(p[k:n], r.region)
	r.tail += uint64(n)
	r.remaining -= min(n, r.remaining)
	if n > 0 {
		failpoint.Here()
		r.header.tail.Store(r.tail)
		failpoint.Here()
	}
	return n, nil
}

// inLargePart reports whether p, into which the caller reads, seems to be memory for a large part,
// or for the unread rest of one. If p is longer than 1 MiB less 16 KiB, it is taken for a large
// part, whose first bytes may have been read together with the bytes before them, and inLargePart
// sets r.remaining to len(p). A shorter p is taken for the rest of a large part if its length is
// r.remaining.
func (r *ringReader) inLargePart(p []byte) bool {
	if len(p) > largePart-shortBatch {
		r.remaining = len(p)
	}
	return len(p) == r.remaining
}

// shouldWakeWriter reports whether the writer is blocked and the bytes that are still to be read
// are at most half of the region that r reads from. With less free space the writer could soon
// block again.
func (r *ringReader) shouldWakeWriter() bool {
	return r.header.writerBlocked.Load() != 0 && r.header.head.Load()-r.tail <= uint64(len(r.region)/2)
}
