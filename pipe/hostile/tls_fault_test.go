package hostile_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// clientHello returns the first TLS record that an honest client sends, its ClientHello, header
// included.
func clientHello(t testing.TB) []byte {
	t.Helper()
	near, far := net.Pipe()
	defer far.Close()
	var handshake sync.WaitGroup
	handshake.Go(func() { _ = tls.Client(near, overTLS(t).config).Handshake() }) // there is no answer
	var header [5]byte
	_, err := io.ReadFull(far, header[:])
	require.NoError(t, err)
	body := make([]byte, int(header[3])<<8|int(header[4]))
	_, err = io.ReadFull(far, body)
	require.NoError(t, err)
	require.NoError(t, near.Close())
	handshake.Wait()
	return slices.Concat(header[:], body)
}

// silentAfterFirst discards all writes but the first.
type silentAfterFirst struct {
	net.Conn
	wrote bool
}

func (c *silentAfterFirst) Write(p []byte) (int, error) {
	if c.wrote {
		return len(p), nil
	}
	c.wrote = true
	return c.Conn.Write(p)
}

// TestTLSNeverFinished checks that a TLS handshake that a client does not complete in time fails,
// and that it blocks no other connection.
func TestTLSNeverFinished(t *testing.T) {
	t.Parallel()
	v := overTLS(t).newVictim(t)
	hello := clientHello(t)
	visitors := map[string]*raw{}
	for name, stall := range map[string]func(r *raw){
		"silent":       func(*raw) {},
		"a byte":       func(r *raw) { r.send(hello[:1]) },
		"half a hello": func(r *raw) { r.send(hello[:len(hello)/2]) },
		"a byte at a time": func(r *raw) {
			go r.sendSlowly(slices.Concat(hello, make([]byte, 1<<10)))
		},
		"no certificate": func(r *raw) {
			require.NoError(t, tls.Client(&silentAfterFirst{Conn: r.Conn}, v.over.config).Handshake())
		},
	} {
		visitors[name] = overTCP.dial(t, strings.TrimPrefix(v.url(), "uv://"))
		stall(visitors[name])
	}
	v.requireServing(t)
	for name, r := range visitors {
		t.Run(name, func(t *testing.T) {
			v.log.requireRejected(t, r.local(), pipe.ErrHandshake)
			r.waitClosed()
		})
	}
	v.requireIdle(t)
	v.requireServing(t)
}

// TestTLSNeverFinishedByListener checks that the victim's Dial fails with ErrHandshakeTimeout if
// the listener does not complete the TLS handshake in time, and that this blocks no other pipe.
func TestTLSNeverFinishedByListener(t *testing.T) {
	t.Parallel()
	v := overTLS(t).newVictim(t, shortHandshakeTimeout)
	type attempt struct {
		listener *rogueListener
		first    *raw
		result   <-chan dialResult
	}
	attempts := map[string]attempt{}
	for name, stall := range map[string]func(first *raw){
		"silent":           func(*raw) {},
		"half a record":    func(first *raw) { first.send([]byte{22, 3, 3, 0, 100, 2, 0}) },
		"a byte at a time": func(first *raw) { go first.sendSlowly(slices.Concat([]byte{22, 3, 3, 64, 0}, make([]byte, 1<<10))) },
	} {
		l := newRogueListener(t)
		result := l.dialFrom(v)
		l.over = overTCP
		attempts[name] = attempt{l, l.acceptRaw(), result}
		stall(attempts[name].first)
	}
	v.requireHealthy(t)
	for name, attempt := range attempts {
		t.Run(name, func(t *testing.T) {
			requireDialFailed(t, attempt.listener, <-attempt.result, pipe.ErrHandshakeTimeout)
			attempt.first.waitClosed()
		})
	}
	v.requireIdle(t)
	v.requireServing(t)
}

// TestTLSMismatch checks that a peer that does not speak TLS is rejected at once, as a client and
// as a listener, with ErrTLSMismatch where its bytes show that.
func TestTLSMismatch(t *testing.T) {
	t.Parallel()
	v := overTLS(t).newVictim(t)
	mismatch := []error{uv.ErrTLSMismatch}
	for name, c := range map[string]struct {
		said    []byte
		reasons []error
	}{
		"plain pipe":          {appendFrame(nil, hello()), mismatch},
		"plain answer":        {appendFrame(nil, goodAnswer("127.0.0.1:1").Append(nil)), mismatch},
		"another protocol":    {[]byte("GET / HTTP/1.1\r\nHost: pipe\r\n\r\n"), mismatch},
		"a record of another": {slices.Concat([]byte{22, 3, 1, 0, 200}, make([]byte, 200)), nil},
		"a record too long":   {slices.Concat([]byte{22, 3, 1, 255, 255}, make([]byte, 1000)), nil},
		"an alert":            {[]byte{21, 3, 3, 0, 2, 2, 40}, nil},
	} {
		for ending, endConn := range connEndings {
			t.Run(name+", "+ending, func(t *testing.T) {
				r := overTCP.dial(t, strings.TrimPrefix(v.url(), "uv://"))
				r.send(c.said)
				endConn(r)
				reasons := []error{pipe.ErrHandshake}
				if ending != "resetting" { // a reset may discard the bytes before it
					reasons = append(reasons, c.reasons...)
				}
				v.log.requireRejected(t, r.local(), reasons...)

				l := newRogueListener(t)
				result := l.dialFrom(v)
				l.over = overTCP
				first := l.acceptRaw()
				first.send(c.said)
				endConn(first)
				d := <-result
				requireError(t, d.err, "")
				_, refused := errors.AsType[*uv.HandshakeError](d.err)
				require.True(t, refused || isDialError(d.err), "%v", d.err) // the reset may come before connecting is over
				v.requireHealthy(t)
			})
		}
	}
	v.requireIdle(t)
	v.requireServing(t)
}

// TestTLSTruncation checks that a pipe fails with ErrPeerLost if its TCP connection ends without
// the end of TLS, so that an attacker cannot feign an orderly end.
func TestTLSTruncation(t *testing.T) {
	t.Parallel()
	t.Run("compatible", func(t *testing.T) {
		t.Parallel()
		inRoles(t, overTLS(t), roles, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
			for _, conn := range []string{"descriptor", "reply", "channel basic"} {
				for name, begin := range partialRecords {
					t.Run(conn+", "+name, func(t *testing.T) {
						a := open(t)
						begin(a.conn(conn))
						a.conn(conn).closeTCP()
						requireBroken(t, a.pipe, conn, pipe.ErrPeerLost)
						v.requireHealthy(t)
					})
				}
			}
		})
	})
	t.Run("native", func(t *testing.T) {
		t.Parallel()
		inRoles(t, overTLS(t), nativeRoles, nativeTruncation)
	})
}

// partialRecords are sent before the end of the TCP connection.
var partialRecords = map[string]func(*raw){
	"between two records": func(*raw) {},
	"within a header":     func(r *raw) { _, _ = r.tcp.Write([]byte{23, 3, 3}) },
	"within a record":     func(r *raw) { _, _ = r.tcp.Write([]byte{23, 3, 3, 1, 0, 1, 2, 3}) },
}

func nativeTruncation(t *testing.T, v *victim, open func(testing.TB) *nativeAttack) {
	for name, begin := range partialRecords {
		t.Run("idle, "+name, func(t *testing.T) {
			n := open(t)
			n.exchange()
			begin(n.first)
			n.first.closeTCP()
			n.requireBrokenNative(anywhere, pipe.ErrPeerLost)
			v.requireHealthy(t)
		})
		t.Run("after the close frame, "+name, func(t *testing.T) {
			n := open(t)
			n.control(native.Control{Kind: native.Goodbye})
			n.exchangeInbound(t)
			begin(n.first)
			n.first.closeTCP()
			require.ErrorIs(t, next(t, n.pipe), pipe.ErrPeerLost)
			require.NoError(t, n.pipe.Close())
			v.requireHealthy(t)
		})
		t.Run("bulk, "+name, func(t *testing.T) {
			n := open(t)
			bulk, read := n.startRead(1 << 20)
			bulk.send(n.chunk(0, 1000, false, native.ChunkTrailer{}))
			begin(bulk)
			bulk.closeTCP()
			requireError(t, <-read, "bulk", pipe.ErrPeerLost)
			n.first.Close()
			n.requireBrokenNative([]string{"bulk", "message", "control"}, pipe.ErrPeerLost) // whichever fails first
			v.requireHealthy(t)
		})
	}
}

// TestTLSForgedRecords checks that a TLS record that was modified on its way, or forged, breaks the
// pipe with ErrProtocol.
func TestTLSForgedRecords(t *testing.T) {
	t.Parallel()
	forgeries := map[string][]byte{
		"a record that is not authentic": slices.Concat([]byte{23, 3, 3, 0, 100}, make([]byte, 100)),
		"a record too short":             {23, 3, 3, 0, 1, 0},
		"a record too long":              slices.Concat([]byte{23, 3, 3, 255, 255}, make([]byte, 65535)),
		"of another version":             slices.Concat([]byte{23, 9, 9, 0, 100}, make([]byte, 100)),
		"of another kind":                slices.Concat([]byte{99, 3, 3, 0, 100}, make([]byte, 100)),
		"an alert in the clear":          {21, 3, 3, 0, 2, 1, 0}, // close_notify
		"another protocol":               []byte("GET / HTTP/1.1\r\nHost: pipe\r\n\r\n"),
	}
	for name, forged := range forgeries {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Run("compatible", func(t *testing.T) {
				inRoles(t, overTLS(t), roles, func(t *testing.T, _ *victim, open func(testing.TB) *attack) {
					a := open(t)
					_, _ = a.desc.tcp.Write(forged)
					requireBroken(t, a.pipe, "descriptor", pipe.ErrProtocol)
				})
			})
			t.Run("native", func(t *testing.T) {
				inRoles(t, overTLS(t), nativeRoles, func(t *testing.T, _ *victim, open func(testing.TB) *nativeAttack) {
					n := open(t)
					_, _ = n.first.tcp.Write(forged)
					n.requireBrokenNative(anywhere, pipe.ErrProtocol)

					n = open(t)
					bulk, read := n.startRead(1 << 20)
					_, _ = bulk.tcp.Write(forged)
					requireError(t, <-read, "bulk", pipe.ErrProtocol)
					waitFor(t, func() bool { return n.pipe.Err() != nil }, "the pipe breaks")
					n.first.Close() // the victim would give it a second to do so
					n.requireBrokenNative([]string{"bulk"}, pipe.ErrProtocol)
				})
			})
		})
	}
}
