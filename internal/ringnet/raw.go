package ringnet

import (
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// rawRing is the bytes of the ring of a Raw.
const rawRing = 1 << 20

// Raw is one stream and nothing else. It implements [transport.Stream] and
// [transport.Gatherer].
type Raw struct {
	stream
	bond      bond
	late      late
	listening sync.WaitGroup

	mu       sync.Mutex
	segments []*segment.Segment
	came     bool // the peer's segment
}

var _ transport.Gatherer = (*Raw)(nil)

// late is what a stream has whose rings come one by one: each end makes that to
// which it writes, when it writes for the first time.
type late struct {
	before io.Reader                 // what the peer wrote before; nil when that is over
	in     atomic.Pointer[readerEnd] // the peer's ring
	make   func() (*writerEnd, error)
	never  atomic.Uint32 // where nobody looks whether the reader sleeps
}

// NewRaw makes the socket a stream; it is its owner. The peer does the same, at
// the same point of their conversation on it. before, if it is not nil, is read
// first, as soon as the peer has begun to write to the stream or has gone: what
// it wrote earlier, in another way. spin is as for [NewSession].
func NewRaw(sock *net.UnixConn, before io.Reader, spin time.Duration, a Addresses) (*Raw, error) {
	r := &Raw{}
	r.stream.bond, r.stream.late, r.stream.addresses = &r.bond, &r.late, a
	r.late.before, r.late.make = before, r.newRing
	seat := wait.NewMemory(spin)
	r.read.init(seat, r.readChanged)
	r.write.init(seat.Sibling(), r.writeChanged)
	if err := r.bond.init(sock); err != nil {
		return nil, err
	}
	r.listening.Go(func() {
		r.bond.listen(r)
		r.poke()
	})
	return r, nil
}

// newRing makes this end's ring and gives it to the peer.
func (r *Raw) newRing() (*writerEnd, error) {
	seg, err := segment.CreateSealed(headerSize + rawRing)
	if err != nil {
		return nil, err
	}
	if err := r.bond.hand(seg.File()); err != nil {
		seg.Close()
		return nil, cause(err)
	}
	_ = seg.CloseFile()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.segments = append(r.segments, seg)
	return newWriterEnd(seg.Bytes()), nil
}

// arrived implements listener.
func (r *Raw) arrived(f *os.File) error {
	defer f.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.came {
		return fmt.Errorf("%w: a second segment", ErrCorrupt)
	}
	seg, err := mapPeers(f, headerSize+rawRing)
	if err != nil {
		return err
	}
	r.came = true
	r.segments = append(r.segments, seg)
	r.late.in.Store(newReaderEnd(seg.Bytes()))
	return nil
}

// rang implements listener.
func (r *Raw) rang(b bell) error {
	if b.kind() == bellWritable {
		r.write.poke()
	} else {
		r.read.poke()
	}
	return nil
}

// Close implements [transport.Stream].
func (r *Raw) Close() error {
	_ = r.stream.Close()
	r.bond.end(transport.ErrClosed)
	r.listening.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, seg := range r.segments {
		_ = seg.Close()
	}
	return nil
}

// readBefore reads what was there before the stream, and takes the peer's ring
// when it has come. gone is whether the bond has ended.
func (s *stream) readBefore(p []byte, gone bool) int {
	l := s.late
	if l == nil {
		return 0
	}
	if s.ends.in == nil {
		s.ends.in = l.in.Load()
	}
	if l.before == nil || s.ends.in == nil && !gone {
		return 0
	}
	n, _ := l.before.Read(p)
	if n == 0 && len(p) > 0 {
		l.before = nil
	}
	return n
}

// outgoing is the ring to write to, which may have to be made. The caller has the
// turn.
func (s *stream) outgoing() (*writerEnd, error) {
	if s.ends.out == nil {
		out, err := s.late.make()
		if err != nil {
			return nil, err
		}
		s.ends.out = out
	}
	return s.ends.out, nil
}

// readerSleeps is where a reader says so.
func (s *stream) readerSleeps() *atomic.Uint32 {
	if s.ends.in == nil {
		return &s.late.never
	}
	return s.ends.in.reader
}
