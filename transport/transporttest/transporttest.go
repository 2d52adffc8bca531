// Package transporttest is the conformance suite of package transport: it tests that an
// implementation keeps the contracts that the comments there state.
//
// An implementation runs it from one of its own tests:
//
//	func TestConformance(t *testing.T) {
//		transporttest.Run(t, transporttest.Backend{
//			Name: "mine",
//			New:  func(t *testing.T) transport.Transport { return mine.New() },
//			Addr: "127.0.0.1:0",
//		})
//	}
//
// Optional interfaces are tested on connections that implement them. No test sleeps or measures
// time. A test in which a call stays blocked fails after a minute, and everything that it opened is
// closed.
package transporttest

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Backend is the implementation under test.
type Backend struct {
	// Name of the implementation, for the names of the tests.
	Name string

	// New returns a transport. All transports that it returns can reach each
	// other. New registers cleanups of t for other resources that it opens.
	New func(t *testing.T) transport.Transport

	// Addr is an address to listen on that any number of listeners may use at
	// once, such as one with port 0.
	Addr string

	// DialRaw connects to a listener without framing: written bytes go onto the
	// wire unchanged. Close ends the connection in order, after all written
	// bytes. If it is nil, tests of partial frames are skipped.
	DialRaw func(addr string) (io.WriteCloser, error)

	// AppendHeader appends the header of a frame whose body has size bytes. It
	// is required with DialRaw.
	AppendHeader func(dst []byte, size int) []byte

	// WriteDeadlineBreaks is set if a stream cannot be used after a write
	// exceeded its deadline, as with TLS. Tests that use it again are skipped.
	WriteDeadlineBreaks bool

	// Timeout is the time limit of each test; zero stands for one minute.
	Timeout time.Duration
}

// Run runs the suite on b.
func Run(t *testing.T, b Backend) {
	groups := []struct {
		name  string
		cases []testCase
	}{
		{"Parity", parityCases(b.Name)},
		{"Transport", transportCases},
		{"Frames", frameCases},
		{"Ends", endCases},
		{"Close", closeCases},
		{"Raw", rawCases},
	}
	for _, g := range groups {
		if g.name == "Raw" && b.DialRaw == nil {
			continue
		}
		for _, c := range g.cases {
			c.run(t, g.name, b)
		}
	}
	t.Run("Stream", func(t *testing.T) { runOptional[transport.Multiplexer](t, b, streamCases) })
	t.Run("Session", func(t *testing.T) { runOptional[transport.Multiplexer](t, b, sessionCases) })
}

// runOptional runs the tests of an optional interface if the connections implement it.
func runOptional[Capability any](t *testing.T, b Backend, cases []testCase) {
	dialled, accepted := b.withTimeout(t).connect(t)
	_, one := dialled.(Capability)
	_, other := accepted.(Capability)
	require.Equal(t, one, other, "only one end implements the interface")
	if !one {
		t.Skip("the connections do not implement the interface")
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.test(t, b.withTimeout(t)) })
	}
}

// testCase is one test. The ids of parity cases are names that contain a slash.
type testCase struct {
	name string
	test func(t *testing.T, b Backend)
}

func (c testCase) run(t *testing.T, group string, b Backend) {
	t.Run(group+"/"+c.name, func(t *testing.T) { c.test(t, b.withTimeout(t)) })
}

// listen returns a transport and a listener, which is closed at the end of the test.
func (b Backend) listen(t *testing.T) (transport.Transport, transport.Listener) {
	t.Helper()
	tr := b.New(t)
	l, err := tr.Listen(t.Context(), b.Addr)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return tr, l
}

// connect returns the two ends of a connection, which are closed at the end of the test.
func (b Backend) connect(t *testing.T) (dialled, accepted transport.Conn) {
	t.Helper()
	tr, l := b.listen(t)
	dialled = dial(t, tr, l.Addr())
	return dialled, accept(t, l)
}

func dial(t *testing.T, tr transport.Transport, addr string) transport.Conn {
	t.Helper()
	c, err := tr.Dial(t.Context(), addr)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func accept(t *testing.T, l transport.Listener) transport.Conn {
	t.Helper()
	c, err := l.Accept(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// readFrame reads one whole frame.
func readFrame(c transport.Conn) ([]byte, error) {
	n, err := c.NextFrame()
	if err != nil {
		return nil, err
	}
	p := make([]byte, n)
	return p, c.ReadBody(p)
}

// wantFrame reads one frame and compares it with want.
func wantFrame(t *testing.T, c transport.Conn, want []byte) {
	t.Helper()
	got, err := readFrame(c)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}

// wantEOF checks that the connection has ended between two frames, twice.
func wantEOF(t *testing.T, c transport.Conn) {
	t.Helper()
	for range 2 {
		_, err := c.NextFrame()
		require.Equal(t, io.EOF, err)
	}
}

// one returns a frame of one part.
func one(p []byte) transport.Frame { return transport.Frame{p} }

// text returns a frame of one part.
func text(s string) transport.Frame { return one([]byte(s)) }
