package transporttest_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
	"github.com/tensorpipe-go/tensorpipe/transport/transporttest"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// flaws are transports that break one promise each, and the test that must
// notice.
var flaws = []struct {
	name    string
	noticed string
	bend    func(bent) bent
}{
	{"none", "", func(b bent) bent { return b }},
	{"no descriptor", "Parity/ContextDomainDescriptor", func(b bent) bent {
		b.descriptor = func() string { return "" }
		return b
	}},
	{"reaches everybody", "Transport/DescriptorsOfStrangers", func(b bent) bent {
		b.reaches = func(string) bool { return true }
		return b
	}},
	{"nameless errors", "Transport/DialNobody", func(b bent) bent {
		b.dialError = errors.New("no")
		return b
	}},
	{"listens in spite of its context", "Transport/CancelledBefore", func(b bent) bent {
		b.listenContext = context.WithoutCancel
		return b
	}},
	{"serves the last who waits first", "Parity/ListenerAcceptCallbacksAreQueued", func(b bent) bent {
		b.listener = func(l transport.Listener) transport.Listener { return newLastFirst(l) }
		return b
	}},
	{"joins frames", "Frames/ManyFramesPerCall", bendConn(func(c transport.Conn) transport.Conn { return joiner{c} })},
	{"drops empty frames", "Frames/Empty", bendConn(func(c transport.Conn) transport.Conn { return dropper{c} })},
	{"consumes the caller's frame", "Frames/MemoryIsTheCallersAgain", bendConn(func(c transport.Conn) transport.Conn { return consumer{c} })},
	{"writes behind the caller's back", "Frames/MemoryIsTheCallersAgain", bendConn(func(c transport.Conn) transport.Conn { return hoarder{c, late} })},
	{"skips what is unread", "Frames/NextBeforeTheEnd", bendConn(func(c transport.Conn) transport.Conn { return &skipper{Conn: c} })},
	{"reads before it refuses", "Frames/MoreThanIsLeft", bendConn(func(c transport.Conn) transport.Conn { return &skipper{Conn: c} })},
	{"clean end within a body", "Ends/CloseWithinABody", bendConn(func(c transport.Conn) transport.Conn { return optimist{c} })},
	{"writes after CloseWrite", "Ends/CloseWriteThenReadOn", bendConn(func(c transport.Conn) transport.Conn { return talker{c} })},
	{"forgets its address", "Transport/AddressesStayAfterClose", bendConn(func(c transport.Conn) transport.Conn { return &amnesiac{Conn: c} })},
	{"queues without bound", "Close/WriterWaitsForTheReader", bendConn(func(c transport.Conn) transport.Conn { return &queue{Conn: c} })},
	{"streams without an end", "Stream/CloseWriteThenReadOn", bendStreams(func(s transport.Stream) transport.Stream { return endlessStream{s} })},
	{"streams that garble what was read ahead", "Stream/BehindFrames", bendStreams(func(s transport.Stream) transport.Stream { return &garbler{Stream: s} })},
	{"streams that seem whole", "Session/WhatArrivedStays", bendSessions(func(s transport.Session) transport.Session { return pretender{s} })},
	{"streams in disorder", "Session/Order", bendSessions(func(s transport.Session) transport.Session { return &shuffler{Session: s} })},
	{"sessions that end without a cause", "Session/CloseOfThePeer", bendSessions(func(s transport.Session) transport.Session { return mute{s} })},
	{"hides its own end", "Close/ThenEverythingFails", bendConn(func(c transport.Conn) transport.Conn { return shy{c} })},
}

// late is what the hoarders of the victim have not written yet.
var late = make(chan func(), 1)

// TestSuiteNoticesFlaws runs TestVictim on each of them.
func TestSuiteNoticesFlaws(t *testing.T) {
	for _, flaw := range flaws {
		t.Run(flaw.name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.v", "-test.run=^TestVictim$/"+flaw.noticed)
			cmd.Env = append(os.Environ(), "TRANSPORTTEST_FLAW="+flaw.name)
			out, err := cmd.CombinedOutput()
			if flaw.noticed == "" {
				require.NoError(t, err, string(out))
				return
			}
			require.Error(t, err)
			require.Contains(t, string(out), "--- FAIL: TestVictim/"+flaw.noticed)
		})
	}
}

func TestVictim(t *testing.T) {
	name := os.Getenv("TRANSPORTTEST_FLAW")
	if name == "" {
		t.Skip("the other process of TestSuiteNoticesFlaws")
	}
	network := mem.NewNetwork()
	for _, flaw := range flaws {
		if flaw.name == name {
			transporttest.Run(t, transporttest.Backend{
				Name: "flawed",
				New: func(*testing.T) transport.Transport {
					return flaw.bend(bent{Transport: mem.New(network)})
				},
			})
		}
	}
}

// bent is a transport with some of its behaviour replaced.
type bent struct {
	transport.Transport
	descriptor    func() string
	reaches       func(string) bool
	dialError     error
	listenContext func(context.Context) context.Context
	listener      func(transport.Listener) transport.Listener
	beforeAccept  func(context.Context)
	conn          func(transport.Conn) transport.Conn
}

func bendConn(f func(transport.Conn) transport.Conn) func(bent) bent {
	return func(b bent) bent {
		b.conn = f
		return b
	}
}

func (b bent) DomainDescriptor() string {
	if b.descriptor != nil {
		return b.descriptor()
	}
	return b.Transport.DomainDescriptor()
}

func (b bent) CanCommunicate(remote string) bool {
	return b.reaches != nil && b.reaches(remote) || b.Transport.CanCommunicate(remote)
}

func (b bent) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	if b.listenContext != nil {
		ctx = b.listenContext(ctx)
	}
	l, err := b.Transport.Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	if b.listener != nil {
		l = b.listener(l)
	}
	return bentListener{l, b}, nil
}

func (b bent) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := b.Transport.Dial(ctx, addr)
	if err != nil && b.dialError != nil {
		return nil, b.dialError
	}
	return b.wrap(c, err)
}

type bentListener struct {
	transport.Listener
	bent bent
}

func (l bentListener) Accept(ctx context.Context) (transport.Conn, error) {
	if l.bent.beforeAccept != nil {
		l.bent.beforeAccept(ctx)
	}
	return l.bent.wrap(l.Listener.Accept(ctx))
}

func (b bent) wrap(c transport.Conn, err error) (transport.Conn, error) {
	if err != nil || b.conn == nil {
		return c, err
	}
	return b.conn(c), nil
}

// lastFirst has its callers wait in a stack.
type lastFirst struct {
	transport.Listener
	changed sync.Cond
	stack   []*int
	busy    bool
}

func newLastFirst(l transport.Listener) *lastFirst {
	return &lastFirst{Listener: l, changed: sync.Cond{L: new(sync.Mutex)}}
}

func (l *lastFirst) Accept(ctx context.Context) (transport.Conn, error) {
	l.changed.L.Lock()
	defer l.changed.L.Unlock()
	me := new(int)
	l.stack = append(l.stack, me)
	for l.busy || l.stack[len(l.stack)-1] != me {
		l.changed.Wait()
	}
	l.stack, l.busy = l.stack[:len(l.stack)-1], true
	l.changed.L.Unlock()
	c, err := l.Listener.Accept(ctx)
	l.changed.L.Lock()
	l.busy = false
	l.changed.Broadcast()
	return c, err
}

type joiner struct{ transport.Conn }

func (c joiner) WriteFrames(frames ...transport.Frame) error {
	return c.Conn.WriteFrames(slices.Concat(frames...))
}

type dropper struct{ transport.Conn }

func (c dropper) WriteFrames(frames ...transport.Frame) error {
	for _, f := range frames {
		if len(bytes.Join(f, nil)) == 0 {
			continue
		}
		if err := c.Conn.WriteFrames(f); err != nil {
			return err
		}
	}
	return nil
}

type consumer struct{ transport.Conn }

func (c consumer) WriteFrames(frames ...transport.Frame) error {
	err := c.Conn.WriteFrames(frames...)
	for _, f := range frames {
		clear(f)
	}
	return err
}

// hoarder writes when the other end reads, from memory that is the caller's
// again by then.
type hoarder struct {
	transport.Conn
	late chan func()
}

func (c hoarder) WriteFrames(frames ...transport.Frame) error {
	kept := make([]transport.Frame, len(frames))
	for i, f := range frames {
		kept[i] = slices.Clone(f)
	}
	c.late <- func() { c.Conn.WriteFrames(kept...) }
	return nil
}

func (c hoarder) NextFrame() (int64, error) {
	(<-c.late)()
	return c.Conn.NextFrame()
}

// skipper serves any order of calls.
type skipper struct {
	transport.Conn
	left int64
}

func (c *skipper) NextFrame() (n int64, err error) {
	c.Conn.ReadBody(make([]byte, c.left))
	c.left, err = c.Conn.NextFrame()
	return c.left, err
}

func (c *skipper) ReadBody(dst ...[]byte) error {
	for _, p := range dst {
		n := min(int64(len(p)), c.left)
		if err := c.Conn.ReadBody(p[:n]); err != nil {
			return err
		}
		c.left -= n
		if n < int64(len(p)) {
			return transport.ErrFrame
		}
	}
	return nil
}

type optimist struct{ transport.Conn }

func (c optimist) ReadBody(dst ...[]byte) error {
	if err := c.Conn.ReadBody(dst...); err != io.ErrUnexpectedEOF {
		return err
	}
	return io.EOF
}

type talker struct{ transport.Conn }

func (c talker) CloseWrite() error { return nil }

type amnesiac struct {
	transport.Conn
	closed bool
}

func (c *amnesiac) Close() error {
	c.closed = true
	return c.Conn.Close()
}

func (c *amnesiac) LocalAddr() string {
	if c.closed {
		return ""
	}
	return c.Conn.LocalAddr()
}

// queue takes everything at once and writes it when it can.
type queue struct {
	transport.Conn
	last chan struct{}
}

func (c *queue) WriteFrames(frames ...transport.Frame) error {
	before, done := c.last, make(chan struct{})
	c.last = done
	go func() {
		defer close(done)
		if before != nil {
			<-before
		}
		c.Conn.WriteFrames(frames...)
	}()
	return nil
}

type shy struct{ transport.Conn }

func (c shy) WriteFrames(frames ...transport.Frame) error {
	if err := c.Conn.WriteFrames(frames...); err != nil && !errors.Is(err, transport.ErrClosed) {
		return err
	}
	return nil
}
