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
// A test that fails prints the rule that was broken, as package transport states it. Optional
// interfaces are tested on connections that implement them. No test sleeps or measures time. A test
// in which a call stays blocked fails after Backend.Timeout, and everything that it opened is
// closed.
package transporttest

import (
	"errors"
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

// Run runs all tests of the suite on b, as subtests of t. Tests of partial frames are left out if
// b.DialRaw is nil. Tests of [transport.Multiplexer] are skipped if the connections do not
// implement it, and those of its streams if it has none.
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
	t.Run("Stream", func(t *testing.T) { runMultiplexed(t, b, streamCases, hasStream) })
	t.Run("Session", func(t *testing.T) {
		runMultiplexed(t, b, sessionCases, func(transport.Multiplexer) bool { return true })
	})
}

// runMultiplexed runs cases as subtests of t if both ends of a connection of b implement
// transport.Multiplexer and has returns true for both. It skips t if that is so for neither end,
// and fails t if for only one.
func runMultiplexed(t *testing.T, b Backend, cases []testCase, has func(transport.Multiplexer) bool) {
	var both [2]bool
	dialled, accepted := b.withTimeout(t).connect(t)
	for i, c := range []transport.Conn{dialled, accepted} {
		m, ok := c.(transport.Multiplexer)
		both[i] = ok && has(m)
	}
	require.Equal(t, both[0], both[1], "only one end of the connection has it")
	if !both[0] {
		t.Skip("the connections do not have it")
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.check(t, b) })
	}
}

// hasStream reports whether m can become a stream. It calls m.Stream, which makes m one, and
// returns false if the error matches transport.ErrNotSupported.
func hasStream(m transport.Multiplexer) bool {
	_, err := m.Stream()
	return !errors.Is(err, transport.ErrNotSupported)
}

// testCase is one test. The ids of parity cases are names that contain a slash.
type testCase struct {
	name string
	rule string // the tested rule: an identifier of package transport, ": ", and sentences of its comment
	test func(t *testing.T, b Backend)
}

func (c testCase) run(t *testing.T, group string, b Backend) {
	t.Run(group+"/"+c.name, func(t *testing.T) { c.check(t, b) })
}

// check runs the test of c on b. If it fails, check prints the rule.
func (c testCase) check(t *testing.T, b Backend) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("the rule that was broken, of package transport: " + c.rule)
		}
	})
	c.test(t, b.withTimeout(t))
}

// listen makes a new transport and opens a listener on b.Addr, which is closed at the end of the
// test. It returns both. An error ends the test.
func (b Backend) listen(t *testing.T) (transport.Transport, transport.Listener) {
	t.Helper()
	tr := b.New(t)
	l, err := tr.Listen(t.Context(), b.Addr)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return tr, l
}

// connect opens a listener and a connection to it, and returns the connection's two ends. All three
// are closed at the end of the test. An error ends the test.
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

// readFrame reads one whole frame and returns its body in new memory. If reading the body fails, it
// returns the error and a slice of the body's size.
func readFrame(c transport.Conn) ([]byte, error) {
	n, err := c.NextFrame()
	if err != nil {
		return nil, err
	}
	p := make([]byte, n)
	return p, c.ReadBody(p)
}

// wantFrame reads one frame and checks that its body is equal to want. An error ends the test.
func wantFrame(t *testing.T, c transport.Conn, want []byte) {
	t.Helper()
	got, err := readFrame(c)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}

// wantEOF checks that two calls of NextFrame return an error that matches io.EOF.
func wantEOF(t *testing.T, c transport.Conn) {
	t.Helper()
	for range 2 {
		_, err := c.NextFrame()
		require.ErrorIs(t, err, io.EOF, "each call of NextFrame after the end returns io.EOF")
	}
}

// one returns a frame whose only part is p. It does not copy p.
func one(p []byte) transport.Frame { return transport.Frame{p} }

// text returns a frame whose only part contains s.
func text(s string) transport.Frame { return one([]byte(s)) }
