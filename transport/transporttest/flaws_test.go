package transporttest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
	"github.com/tensorpipe-go/tensorpipe/transport/transporttest"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// flaws are transports that each violate one contract, and the test that must fail. Those without a
// test use the freedom that the contract leaves.
var flaws = []struct {
	name    string
	failing string
	modify  func(flawed) flawed
}{
	{"none", "", func(b flawed) flawed { return b }},
	{"no descriptor", "Parity/ContextDomainDescriptor", func(b flawed) flawed {
		b.descriptor = func() string { return "" }
		return b
	}},
	{"accepts every descriptor", "Transport/ForeignDescriptors", func(b flawed) flawed {
		b.reaches = func(string) bool { return true }
		return b
	}},
	{"ignores the context of Listen, which does not block", "", func(b flawed) flawed {
		b.listenContext = context.WithoutCancel
		return b
	}},
	{"wraps its errors", "", wrapConns(func(c transport.Conn) transport.Conn { return errorWrapper{c} })},
	{"serves blocked calls in reverse order", "Parity/ListenerAcceptCallbacksAreQueued", func(b flawed) flawed {
		b.listener = func(l transport.Listener) transport.Listener { return newLIFOListener(l) }
		return b
	}},
	{"joins frames", "Frames/ManyFramesPerCall", wrapConns(func(c transport.Conn) transport.Conn { return frameJoiner{c} })},
	{"drops empty frames", "Frames/Empty", wrapConns(func(c transport.Conn) transport.Conn { return emptyFrameDropper{c} })},
	{"modifies the caller's frame", "Frames/MemoryReusableAfterWrite", wrapConns(func(c transport.Conn) transport.Conn { return frameClearer{c} })},
	{"writes after WriteFrames has returned", "Frames/MemoryReusableAfterWrite", wrapConns(func(c transport.Conn) transport.Conn { return delayedWriter{c, delayedWrites} })},
	{"skips unread bytes", "Frames/NextFrameBeforeEndOfBody", wrapConns(func(c transport.Conn) transport.Conn { return &unreadSkipper{Conn: c} })},
	{"reads before it rejects", "Frames/ReadBeyondBody", wrapConns(func(c transport.Conn) transport.Conn { return &unreadSkipper{Conn: c} })},
	{"EOF within a body", "Ends/CloseWithinBody", wrapConns(func(c transport.Conn) transport.Conn { return cleanEOFConn{c} })},
	{"writes after CloseWrite", "Ends/CloseWriteThenRead", wrapConns(func(c transport.Conn) transport.Conn { return closeWriteIgnorer{c} })},
	{"forgets its address", "Transport/AddressesStayAfterClose", wrapConns(func(c transport.Conn) transport.Conn { return &addressForgetter{Conn: c} })},
	{"queues without bound", "Close/WriterWaitsForReader", wrapConns(func(c transport.Conn) transport.Conn { return &unboundedQueue{Conn: c} })},
	{"streams that close for reading too", "Stream/CloseWriteThenRead", wrapStreams(func(s transport.Stream) transport.Stream { return endlessStream{s} })},
	{"streams that corrupt bytes read ahead", "Stream/AfterFrames", wrapStreams(func(s transport.Stream) transport.Stream { return &corruptingStream{Stream: s} })},
	{"streams that hide the end of the session", "Session/BufferedDataAfterClose", wrapSessions(func(s transport.Session) transport.Session { return cleanEOFSession{s} })},
	{"streams out of order", "Session/Order", wrapSessions(func(s transport.Session) transport.Session { return &streamReorderer{Session: s} })},
	{"sessions without a cause of their end", "Session/CloseByPeer", wrapSessions(func(s transport.Session) transport.Session { return causeHider{s} })},
	{"hides that it is closed", "Close/FailsLaterCalls", wrapConns(func(c transport.Conn) transport.Conn { return closedErrorHider{c} })},
}

// delayedWrites are the writes that a delayedWriter has not executed yet.
var delayedWrites = make(chan func(), 1)

// TestSuiteFindsFlaws checks that the suite fails on each transport in flaws, in the test that is
// named there, and passes on the one without a flaw. Each runs in a subprocess.
func TestSuiteFindsFlaws(t *testing.T) {
	for _, flaw := range flaws {
		t.Run(flaw.name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.v", "-test.run=^TestFlawedTransport$/"+flaw.failing)
			cmd.Env = append(os.Environ(), "TRANSPORTTEST_FLAW="+flaw.name)
			out, err := cmd.CombinedOutput()
			if flaw.failing == "" {
				require.NoError(t, err, string(out))
				return
			}
			require.Error(t, err)
			require.Contains(t, string(out), "--- FAIL: TestFlawedTransport/"+flaw.failing)
			require.Contains(t, string(out), "the rule that was broken, of package transport: ")
		})
	}
}

func TestFlawedTransport(t *testing.T) {
	name := os.Getenv("TRANSPORTTEST_FLAW")
	if name == "" {
		t.Skip("runs in the subprocesses of TestSuiteFindsFlaws")
	}
	network := mem.NewNetwork()
	for _, flaw := range flaws {
		if flaw.name == name {
			transporttest.Run(t, transporttest.Backend{
				Name: "flawed",
				New: func(*testing.T) transport.Transport {
					return flaw.modify(flawed{Transport: mem.New(network)})
				},
			})
		}
	}
}

// errorWrapper wraps the errors of a connection.
type errorWrapper struct{ transport.Conn }

func (w errorWrapper) WriteFrames(frames ...transport.Frame) error {
	return wrapped(w.Conn.WriteFrames(frames...))
}

func (w errorWrapper) NextFrame() (int64, error) {
	n, err := w.Conn.NextFrame()
	return n, wrapped(err)
}

func (w errorWrapper) ReadBody(dst ...[]byte) error { return wrapped(w.Conn.ReadBody(dst...)) }

func wrapped(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("connection 1: %w", err)
}

// flawed is a transport with replaceable behaviour.
type flawed struct {
	transport.Transport
	descriptor    func() string
	reaches       func(string) bool
	listenContext func(context.Context) context.Context
	listener      func(transport.Listener) transport.Listener
	beforeAccept  func(context.Context)
	conn          func(transport.Conn) transport.Conn
}

func wrapConns(f func(transport.Conn) transport.Conn) func(flawed) flawed {
	return func(b flawed) flawed {
		b.conn = f
		return b
	}
}

func (b flawed) DomainDescriptor() string {
	if b.descriptor != nil {
		return b.descriptor()
	}
	return b.Transport.DomainDescriptor()
}

func (b flawed) CanCommunicate(remote string) bool {
	return b.reaches != nil && b.reaches(remote) || b.Transport.CanCommunicate(remote)
}

func (b flawed) Listen(ctx context.Context, addr string) (transport.Listener, error) {
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
	return flawedListener{l, b}, nil
}

func (b flawed) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	return b.wrap(b.Transport.Dial(ctx, addr))
}

type flawedListener struct {
	transport.Listener
	flawed flawed
}

func (l flawedListener) Accept(ctx context.Context) (transport.Conn, error) {
	if l.flawed.beforeAccept != nil {
		l.flawed.beforeAccept(ctx)
	}
	return l.flawed.wrap(l.Listener.Accept(ctx))
}

func (b flawed) wrap(c transport.Conn, err error) (transport.Conn, error) {
	if err != nil || b.conn == nil {
		return c, err
	}
	return b.conn(c), nil
}

// lifoListener serves blocked calls of Accept in the reverse order.
type lifoListener struct {
	transport.Listener
	changed sync.Cond
	stack   []*int
	busy    bool
}

func newLIFOListener(l transport.Listener) *lifoListener {
	return &lifoListener{Listener: l, changed: sync.Cond{L: new(sync.Mutex)}}
}

func (l *lifoListener) Accept(ctx context.Context) (transport.Conn, error) {
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

type frameJoiner struct{ transport.Conn }

func (c frameJoiner) WriteFrames(frames ...transport.Frame) error {
	return c.Conn.WriteFrames(slices.Concat(frames...))
}

type emptyFrameDropper struct{ transport.Conn }

func (c emptyFrameDropper) WriteFrames(frames ...transport.Frame) error {
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

type frameClearer struct{ transport.Conn }

func (c frameClearer) WriteFrames(frames ...transport.Frame) error {
	err := c.Conn.WriteFrames(frames...)
	for _, f := range frames {
		clear(f)
	}
	return err
}

// delayedWriter writes when the other end reads, from memory that the caller may use again by then.
type delayedWriter struct {
	transport.Conn
	delayedWrites chan func()
}

func (c delayedWriter) WriteFrames(frames ...transport.Frame) error {
	kept := make([]transport.Frame, len(frames))
	for i, f := range frames {
		kept[i] = slices.Clone(f)
	}
	c.delayedWrites <- func() { c.Conn.WriteFrames(kept...) }
	return nil
}

func (c delayedWriter) NextFrame() (int64, error) {
	(<-c.delayedWrites)()
	return c.Conn.NextFrame()
}

// unreadSkipper accepts calls in any order.
type unreadSkipper struct {
	transport.Conn
	left int64
}

func (c *unreadSkipper) NextFrame() (n int64, err error) {
	c.Conn.ReadBody(make([]byte, c.left))
	c.left, err = c.Conn.NextFrame()
	return c.left, err
}

func (c *unreadSkipper) ReadBody(dst ...[]byte) error {
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

type cleanEOFConn struct{ transport.Conn }

func (c cleanEOFConn) ReadBody(dst ...[]byte) error {
	if err := c.Conn.ReadBody(dst...); err != io.ErrUnexpectedEOF {
		return err
	}
	return io.EOF
}

type closeWriteIgnorer struct{ transport.Conn }

func (c closeWriteIgnorer) CloseWrite() error { return nil }

type addressForgetter struct {
	transport.Conn
	closed bool
}

func (c *addressForgetter) Close() error {
	c.closed = true
	return c.Conn.Close()
}

func (c *addressForgetter) LocalAddr() string {
	if c.closed {
		return ""
	}
	return c.Conn.LocalAddr()
}

// unboundedQueue returns from writes at once and executes them later.
type unboundedQueue struct {
	transport.Conn
	last chan struct{}
}

func (c *unboundedQueue) WriteFrames(frames ...transport.Frame) error {
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

type closedErrorHider struct{ transport.Conn }

func (c closedErrorHider) WriteFrames(frames ...transport.Frame) error {
	if err := c.Conn.WriteFrames(frames...); err != nil && !errors.Is(err, transport.ErrClosed) {
		return err
	}
	return nil
}
