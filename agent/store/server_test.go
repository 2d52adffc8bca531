package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/loglines"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// serving starts a server with the options o and a logger of its own, and returns the server and
// the lines that it logs. The server is closed when the test ends.
func serving(t *testing.T, o ServerOptions) (*Server, *loglines.Lines) {
	t.Helper()
	log := &loglines.Lines{}
	o.Logger = log.Logger()
	s, err := Serve(t.Context(), "127.0.0.1:0", o)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s, log
}

// raw opens a plain TCP connection to the server, with a deadline, and returns it. The connection
// is closed when the test ends.
func raw(t *testing.T, s *Server) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", s.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(testwait.Limit)))
	return c
}

func send(t *testing.T, c net.Conn, parts ...any) {
	t.Helper()
	var b []byte
	for _, p := range parts {
		switch p := p.(type) {
		case int:
			b = binary.LittleEndian.AppendUint64(b, uint64(p))
		case opcode:
			b = append(b, byte(p))
		case string:
			b = append(b, p...)
		}
	}
	_, err := c.Write(b)
	require.NoError(t, err)
}

// wantClosed reads from c until the server closes or resets the connection, and fails the test if
// the server sends a byte before.
func wantClosed(t *testing.T, c net.Conn) {
	t.Helper()
	remaining, err := io.ReadAll(c)
	if err != nil {
		require.ErrorContains(t, err, "reset by peer", "closed with unread bytes")
	}
	require.Empty(t, remaining)
}

// wantWorking fails the test unless a new client of the server can set a key and get its value.
func wantWorking(t *testing.T, s *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testwait.Limit)
	defer cancel()
	c, err := Dial(ctx, s.Addr(), ClientOptions{})
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.Set(ctx, "service", []byte("is good")))
	value, err := c.Get(ctx, "service")
	require.NoError(t, err)
	require.Equal(t, "is good", string(value))
}

// waitUntil calls done repeatedly until it returns true. It fails the test if that takes longer
// than testwait.Limit.
func waitUntil(t *testing.T, done func() bool) {
	t.Helper()
	begin := time.Now()
	for !done() {
		require.Less(t, time.Since(begin), testwait.Limit)
		runtime.Gosched()
	}
}

func TestInvalidRequestClosesTheConnection(t *testing.T) {
	for what, c := range map[string]struct {
		parts []any
		log   string
	}{
		"unknown request":     {[]any{"\x63"}, "a request of kind 99"},
		"text":                {[]any{"GET / HTTP/1.1\r\n\r\n"}, "a request of kind 71"},
		"endless key":         {[]any{opGet, -1}, "bytes of a key"},
		"endless value":       {[]any{opSet, 1, "k", 1 << 40}, "bytes of a value"},
		"endless keys":        {[]any{opCheck, 1 << 40}, "keys, but at most 65536 are allowed"},
		"key that is missing": {[]any{opGet, 1, "k"}, "no such key"},
		"no number":           {[]any{opSet, 1, "k", 1, "x", opAdd, 1, "k", 1}, "not a number"},
		"request under wait":  {[]any{opWait, 1, 1, "m", opCount}, "while another one waits"},
		"PyTorch 2":           {[]any{"\x00\xce\xf7\x85\x3c", "\x0d\x01\x02\x03\x04"}, "PyTorch 2"},
	} {
		t.Run(what, func(t *testing.T) {
			s, log := serving(t, ServerOptions{})
			c1 := raw(t, s)
			send(t, c1, c.parts...)
			wantClosed(t, c1)
			waitUntil(t, func() bool { return strings.Contains(log.String(), c.log) })
			wantWorking(t, s)
			require.Zero(t, s.quota.used.Load())
		})
	}
}

func TestTooManyWatched(t *testing.T) {
	s, log := serving(t, ServerOptions{})
	c := raw(t, s)
	for i := range maxWatched {
		key := fmt.Sprint(i)
		send(t, c, opWatch, len(key), key)
	}
	_, err := io.ReadFull(c, make([]byte, maxWatched))
	require.NoError(t, err)
	send(t, c, opWatch, 1, "1", opWatch, 1, "x")
	_, err = io.ReadFull(c, make([]byte, 1))
	require.NoError(t, err, "it was watched already")
	wantClosed(t, c)
	require.Contains(t, log.String(), "1024 keys are watched already")
	waitUntil(t, func() bool {
		s.table.mu.Lock()
		defer s.table.mu.Unlock()
		return len(s.table.subscriptions) == 0
	})
}

// TestIdleConnectionsAreEvicted tests that a server at its limit of connections closes the oldest
// connection that has sent no request for each new one, but not that of a client that has sent one.
func TestIdleConnectionsAreEvicted(t *testing.T) {
	s, _ := serving(t, ServerOptions{MaxConns: 4})
	c, err := Dial(t.Context(), s.Addr(), ClientOptions{})
	require.NoError(t, err)
	defer c.Close()
	var idle []net.Conn
	for range 10 {
		idle = append(idle, raw(t, s))
	}
	wantClosed(t, idle[0])
	wantWorking(t, s)
	require.NoError(t, c.Set(t.Context(), "key", nil), "this client has sent a request")
}

func TestTooManyClients(t *testing.T) {
	s, log := serving(t, ServerOptions{MaxConns: 2})
	for range 2 {
		c, err := Dial(t.Context(), s.Addr(), ClientOptions{})
		require.NoError(t, err)
		defer c.Close()
	}
	_, err := Dial(t.Context(), s.Addr(), ClientOptions{})
	require.ErrorIs(t, err, ErrDisconnected)
	require.Contains(t, log.String(), "too many connections")
}

// stall is the limit on stalled peers in tests with other peers that must be served,
// which may be slow on a busy machine.
const stall = time.Second

func TestStalledRequest(t *testing.T) {
	t.Parallel()
	s, log := serving(t, ServerOptions{Stall: stall})
	c := raw(t, s)
	send(t, c, opSet, 3, "k")
	wantClosed(t, c)
	require.Contains(t, log.String(), "i/o timeout")
	wantWorking(t, s)
}

// TestPeerThatDoesNotRead tests that a server disconnects a peer that watches a key and does not
// read the updates, and goes on serving others.
func TestPeerThatDoesNotRead(t *testing.T) {
	s, _ := serving(t, ServerOptions{Stall: stall})
	c := raw(t, s)
	send(t, c, opWatch, 1, "k")
	_, err := io.ReadFull(c, make([]byte, 1))
	require.NoError(t, err)
	large := make([]byte, 8<<20)
	closed := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.sessions) == 0
	}
	waitUntil(t, func() bool {
		require.NoError(t, s.table.set("k", large))
		return closed()
	})
	wantWorking(t, s)
}

func TestRequestsInPart(t *testing.T) {
	s, log := serving(t, ServerOptions{RequestBytes: 2 * allocChunk})
	part := string(make([]byte, allocChunk/2))
	one, two, three := raw(t, s), raw(t, s), raw(t, s)
	send(t, one, opSet, 1, "a", 1<<20, part)
	send(t, two, opSet, 1, "b", 1<<20, part)
	waitUntil(t, func() bool { return s.quota.used.Load() > allocChunk })
	send(t, three, opSet, 1, "c", 1<<20, part)
	wantClosed(t, three)
	require.Contains(t, log.String(), "are being received")
	wantWorking(t, s)
	one.Close()
	two.Close()
	waitUntil(t, func() bool { return s.quota.used.Load() == 0 })
}

func TestWaitOfADisconnectedClient(t *testing.T) {
	s, _ := serving(t, ServerOptions{})
	waiting := func() int {
		s.table.mu.Lock()
		defer s.table.mu.Unlock()
		return len(s.table.waiters)
	}
	c := raw(t, s)
	send(t, c, opWait, 1, 1, "k")
	waitUntil(t, func() bool { return waiting() == 1 })
	c.Close()
	waitUntil(t, func() bool { return waiting() == 0 })
}

func TestServerClose(t *testing.T) {
	s, _ := serving(t, ServerOptions{})
	c, err := Dial(t.Context(), s.Addr(), ClientOptions{})
	require.NoError(t, err)
	defer c.Close()
	w, err := c.Watch(t.Context(), "key")
	require.NoError(t, err)
	waited := testwait.Start(func() error { return c.Wait(t.Context(), "key") })
	local := s.Store()
	mine := testwait.Start(func() error { return local.Wait(t.Context(), "key") })
	waitUntil(t, func() bool {
		s.table.mu.Lock()
		defer s.table.mu.Unlock()
		a := s.table.waiters["/key"]
		return a != nil && a.waiting == 2
	})
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.ErrorIs(t, testwait.Finish(t, waited), ErrDisconnected)
	require.ErrorIs(t, testwait.Finish(t, mine), ErrClosed)
	_, err = w.Next(t.Context())
	require.ErrorIs(t, err, ErrDisconnected)
	require.Error(t, c.Set(t.Context(), "key", nil))
}

func FuzzRequest(f *testing.F) {
	for _, r := range []request{
		{op: opSet, key: "/k", value: []byte("v")},
		{op: opCompareAndSet, key: "/k", expected: []byte("e"), value: []byte("v")},
		{op: opGet, key: "/k"},
		{op: opAdd, key: "init/", delta: -1},
		{op: opCheck, keys: []string{"/a", "/b"}},
		{op: opWait},
		{op: opCount},
		{op: opWatch, key: "/k"},
		{op: opDelete, key: ""},
	} {
		f.Add(r.append(nil))
	}
	f.Add([]byte("\x00\xce\xf7\x85\x3c\x0d\x01\x02\x03\x04"))
	f.Fuzz(func(t *testing.T, b []byte) {
		reserved := 0
		d := newDecoder(bytes.NewReader(b), Limits{KeyBytes: 100, ValueBytes: 1 << 20, MaxKeys: 100}.orDefaults())
		d.reserve = func(n int) error { reserved += n; return nil }
		r, err := d.request()
		require.LessOrEqual(t, reserved, len(b)+len(b)/8*keyOverhead+2*allocChunk, "memory for bytes that have not come")
		if err == nil {
			again := r.append(nil)
			require.Equal(t, b[:len(again)], again)
		}
	})
}
