package channeltest

import (
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// counter counts the frames that connections write, and the bytes of streams.
type counter struct{ frames, bytes atomic.Int64 }

func (c *counter) wrap(w wires) wires {
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

// killer closes all connections of one end, as the death of a process does, at
// a chosen step: the number of calls on them so far.
type killer struct {
	wires wires
	step  int64
	steps atomic.Int64
	once  sync.Once
}

func newKiller(w wires, step int) *killer {
	return &killer{wires: w, step: int64(step)}
}

// wrap returns connections that count their calls.
func (k *killer) wrap() wires {
	w := k.wires
	w.conns = make([]transport.Conn, len(k.wires.conns))
	for i, c := range k.wires.conns {
		w.conns[i] = &mortalConn{Conn: c, killer: k}
	}
	if w.bulk != nil {
		w.bulk = &mortalStream{Stream: w.bulk, killer: k}
	}
	return w
}

// due counts a step and reports whether it is the last.
func (k *killer) due() bool { return k.steps.Add(1)-1 == k.step }

func (k *killer) kill() {
	k.once.Do(k.wires.close)
}

// struck reports whether the step came.
func (k *killer) struck() bool { return k.steps.Load() > k.step }

type mortalConn struct {
	transport.Conn
	killer *killer
}

// WriteFrames dies at some moment of the write.
func (c *mortalConn) WriteFrames(frames ...transport.Frame) error {
	if !c.killer.due() {
		return c.Conn.WriteFrames(frames...)
	}
	killed := patience.Start(func() bool { c.killer.kill(); return true })
	err := c.Conn.WriteFrames(frames...)
	<-killed
	return err
}

func (c *mortalConn) NextFrame() (int64, error) {
	if c.killer.due() {
		c.killer.kill()
	}
	return c.Conn.NextFrame()
}

// ReadBody dies with half of the first part read.
func (c *mortalConn) ReadBody(dst ...[]byte) error {
	if !c.killer.due() || len(dst) == 0 {
		return c.Conn.ReadBody(dst...)
	}
	half := len(dst[0]) / 2
	if err := c.Conn.ReadBody(dst[0][:half]); err != nil {
		return err
	}
	c.killer.kill()
	return c.Conn.ReadBody(dst[0][half:])
}

type mortalStream struct {
	transport.Stream
	killer *killer
}

// Write dies at some moment of the write.
func (s *mortalStream) Write(p []byte) (int, error) {
	if !s.killer.due() {
		return s.Stream.Write(p)
	}
	killed := patience.Start(func() bool { s.killer.kill(); return true })
	n, err := s.Stream.Write(p)
	<-killed
	return n, err
}

// Read dies before there is anything to read, or with half of what there could
// be.
func (s *mortalStream) Read(p []byte) (int, error) {
	if !s.killer.due() {
		return s.Stream.Read(p)
	}
	n, err := s.Stream.Read(p[:(len(p)+1)/2])
	s.killer.kill()
	return n, err
}
