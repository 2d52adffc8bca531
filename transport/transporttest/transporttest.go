// Package transporttest is the conformance suite of package transport: what
// the comments there promise, as tests that every implementation passes.
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
// The powers that only some connections have are tested where they have them.
// Nothing sleeps and nothing is timed. A test with a call that stays blocked
// where it must not fails within a minute, and what it opened is closed.
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

	// New returns a transport. All transports that it returns reach each
	// other. What it opens beside them it closes with the test.
	New func(t *testing.T) transport.Transport

	// Addr is an address to listen on that any number of listeners may use at
	// once, such as one with port 0.
	Addr string

	// DialRaw connects to a listener as a peer that is free to break the
	// framing: what is written arrives as it is. Close ends the connection in
	// order, after what was written. Nil leaves out the tests of ends within a
	// frame that need it.
	DialRaw func(addr string) (io.WriteCloser, error)

	// AppendHeader appends what precedes a body of size bytes on the wire. It
	// goes with DialRaw.
	AppendHeader func(dst []byte, size int) []byte

	// WriteDeadlineBreaks says that a write to a raw stream whose deadline has
	// passed leaves it broken, as with TLS. The tests of going on are left out.
	WriteDeadlineBreaks bool

	// Patience bounds each test; zero stands for one minute.
	Patience time.Duration
}

// Run tests b.
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
	t.Run("Stream", func(t *testing.T) { runPower[transport.Streamer](t, b, streamCases) })
	t.Run("Session", func(t *testing.T) { runPower[transport.Multiplexer](t, b, sessionCases) })
}

// runPower runs the tests of a power that some connections have.
func runPower[Power any](t *testing.T, b Backend, cases []testCase) {
	dialled, accepted := b.watched(t).connect(t)
	_, one := dialled.(Power)
	_, other := accepted.(Power)
	require.Equal(t, one, other, "only one end has the power")
	if !one {
		t.Skip("the connections do not have this power")
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.test(t, b.watched(t)) })
	}
}

// testCase is one test; parity ids are names with a slash of their own.
type testCase struct {
	name string
	test func(t *testing.T, b Backend)
}

func (c testCase) run(t *testing.T, group string, b Backend) {
	t.Run(group+"/"+c.name, func(t *testing.T) { c.test(t, b.watched(t)) })
}

// listen opens a listener that is closed with the test.
func (b Backend) listen(t *testing.T) (transport.Transport, transport.Listener) {
	t.Helper()
	tr := b.New(t)
	l, err := tr.Listen(t.Context(), b.Addr)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return tr, l
}

// connect returns the two ends of a connection that is closed with the test.
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

// readFrame reads one frame in full.
func readFrame(c transport.Conn) ([]byte, error) {
	n, err := c.NextFrame()
	if err != nil {
		return nil, err
	}
	p := make([]byte, n)
	return p, c.ReadBody(p)
}

// wantFrame reads one frame and compares it.
func wantFrame(t *testing.T, c transport.Conn, want []byte) {
	t.Helper()
	got, err := readFrame(c)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}

// wantEOF checks that the peer ended the connection between two frames, and
// that this stays so.
func wantEOF(t *testing.T, c transport.Conn) {
	t.Helper()
	for range 2 {
		_, err := c.NextFrame()
		require.Equal(t, io.EOF, err)
	}
}

// one is a frame of one part.
func one(p []byte) transport.Frame { return transport.Frame{p} }

// text is a frame of one part.
func text(s string) transport.Frame { return one([]byte(s)) }
