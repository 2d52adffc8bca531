package channeltest

import (
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// counter counts the frames written to connections and the bytes written to streams.
type counter struct{ frames, bytes atomic.Int64 }

func (c *counter) wrap(w linkParts) linkParts {
	conns := make([]transport.Conn, len(w.conns))
	for i := range conns {
		conns[i] = &countingConn{Conn: w.conns[i], frames: &c.frames}
	}
	w.conns = conns
	if w.bulk != nil {
		w.bulk = &countingStream{Stream: w.bulk, bytes: &c.bytes}
	}
	return w
}

type countingConn struct {
	transport.Conn
	frames *atomic.Int64
}

func (c *countingConn) WriteFrames(frames ...transport.Frame) error {
	c.frames.Add(int64(len(frames)))
	return c.Conn.WriteFrames(frames...)
}

type countingStream struct {
	transport.Stream
	bytes *atomic.Int64
}

func (c *countingStream) Write(p []byte) (int, error) {
	n, err := c.Stream.Write(p)
	c.bytes.Add(int64(n))
	return n, err
}

// connKiller closes all connections of one end at a chosen call on them, as the death of its
// process does.
type connKiller struct {
	parts     linkParts
	atCall    int64
	callCount atomic.Int64
	once      sync.Once
}

func newConnKiller(w linkParts, atCall int) *connKiller {
	return &connKiller{parts: w, atCall: int64(atCall)}
}

// wrap returns a copy of k.parts whose connections and bulk stream count the calls on them, and
// close all of them at the chosen call.
func (k *connKiller) wrap() linkParts {
	w := k.parts
	w.conns = make([]transport.Conn, len(k.parts.conns))
	for i, c := range k.parts.conns {
		w.conns[i] = &killableConn{Conn: c, killer: k}
	}
	if w.bulk != nil {
		w.bulk = &killableStream{Stream: w.bulk, killer: k}
	}
	return w
}

// countCall counts one call on a connection or stream, and reports whether it is the chosen one, at
// which the caller must call kill.
func (k *connKiller) countCall() bool { return k.callCount.Add(1)-1 == k.atCall }

func (k *connKiller) kill() {
	k.once.Do(k.parts.close)
}

// fired reports whether the chosen call has been made.
func (k *connKiller) fired() bool { return k.callCount.Load() > k.atCall }

type killableConn struct {
	transport.Conn
	killer *connKiller
}

// WriteFrames writes frames to the connection. If this is the chosen call, it also closes all
// connections of the end concurrently with the write, and waits for that. It returns the error of
// the write.
func (c *killableConn) WriteFrames(frames ...transport.Frame) error {
	if !c.killer.countCall() {
		return c.Conn.WriteFrames(frames...)
	}
	killed := testwait.Start(func() bool { c.killer.kill(); return true })
	err := c.Conn.WriteFrames(frames...)
	<-killed
	return err
}

func (c *killableConn) NextFrame() (int64, error) {
	if c.killer.countCall() {
		c.killer.kill()
	}
	return c.Conn.NextFrame()
}

// ReadBody reads the next bytes of the frame into dst. If this is the chosen call and dst is not
// empty, it closes all connections of the end after it has read half of dst[0], and returns the
// error of reading the other half of dst[0]; the other parts stay as they were.
func (c *killableConn) ReadBody(dst ...[]byte) error {
	if !c.killer.countCall() || len(dst) == 0 {
		return c.Conn.ReadBody(dst...)
	}
	half := len(dst[0]) / 2
	if err := c.Conn.ReadBody(dst[0][:half]); err != nil {
		return err
	}
	c.killer.kill()
	return c.Conn.ReadBody(dst[0][half:])
}

type killableStream struct {
	transport.Stream
	killer *connKiller
}

// Write writes p to the stream. If this is the chosen call, it also closes all connections of the
// end concurrently with the write, and waits for that. It returns the result of the write.
func (s *killableStream) Write(p []byte) (int, error) {
	if !s.killer.countCall() {
		return s.Stream.Write(p)
	}
	killed := testwait.Start(func() bool { s.killer.kill(); return true })
	n, err := s.Stream.Write(p)
	<-killed
	return n, err
}

// Read reads from the stream into p. If this is the chosen call, it reads at most half of p,
// rounded up, and then closes all connections of the end. It returns the result of the read.
func (s *killableStream) Read(p []byte) (int, error) {
	if !s.killer.countCall() {
		return s.Stream.Read(p)
	}
	n, err := s.Stream.Read(p[:(len(p)+1)/2])
	s.killer.kill()
	return n, err
}
