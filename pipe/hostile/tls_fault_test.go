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

// What is wrong with TLS itself.

// clientHello is the first record of an honest client.
func clientHello(t testing.TB) []byte {
	t.Helper()
	near, far := net.Pipe()
	defer far.Close()
	var handshake sync.WaitGroup
	handshake.Go(func() { _ = tls.Client(near, overTLS(t).config).Handshake() }) // which nobody answers
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

// reticent keeps to itself what it should write, but for the first time.
type reticent struct {
	net.Conn
	spoken bool
}

func (c *reticent) Write(p []byte) (int, error) {
	if c.spoken {
		return len(p), nil
	}
	c.spoken = true
	return c.Conn.Write(p)
}

// A handshake of TLS that does not come to its end is given up, and holds up
// nobody else until then.
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
			go r.drip(slices.Concat(hello, make([]byte, 1<<10)))
		},
		"no certificate": func(r *raw) {
			require.NoError(t, tls.Client(&reticent{Conn: r.Conn}, v.over.config).Handshake())
		},
	} {
		visitors[name] = overTCP.dial(t, strings.TrimPrefix(v.url(), "uv://"))
		stall(visitors[name])
	}
	v.alive(t)
	for name, r := range visitors {
		t.Run(name, func(t *testing.T) {
			v.log.requireRefused(t, r.local(), pipe.ErrHandshake)
			r.ended()
		})
	}
	v.quiet(t)
	v.alive(t)
}

// The same from the other side.
func TestTLSNeverFinishedByListener(t *testing.T) {
	t.Parallel()
	v := overTLS(t).newVictim(t, hurried)
	type visit struct {
		trap   *trap
		first  *raw
		result <-chan dialled
	}
	visits := map[string]visit{}
	for name, stall := range map[string]func(first *raw){
		"silent":           func(*raw) {},
		"half a record":    func(first *raw) { first.send([]byte{22, 3, 3, 0, 100, 2, 0}) },
		"a byte at a time": func(first *raw) { go first.drip(slices.Concat([]byte{22, 3, 3, 64, 0}, make([]byte, 1<<10))) },
	} {
		l := newTrap(t)
		result := l.lure(v)
		l.over = overTCP
		visits[name] = visit{l, l.take(), result}
		stall(visits[name].first)
	}
	v.unharmed(t)
	for name, visit := range visits {
		t.Run(name, func(t *testing.T) {
			requireDialFailed(t, visit.trap, <-visit.result, pipe.ErrHandshakeTimeout)
			visit.first.ended()
		})
	}
	v.quiet(t)
	v.alive(t)
}

// Whoever speaks something else is turned away at once, and so is who dials to
// such a listener.
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
		for how, leave := range departures {
			t.Run(name+", "+how, func(t *testing.T) {
				r := overTCP.dial(t, strings.TrimPrefix(v.url(), "uv://"))
				r.send(c.said)
				leave(r)
				reasons := []error{pipe.ErrHandshake}
				if how != "resetting" { // which may take back what was said
					reasons = append(reasons, c.reasons...)
				}
				v.log.requireRefused(t, r.local(), reasons...)

				l := newTrap(t)
				result := l.lure(v)
				l.over = overTCP
				first := l.take()
				first.send(c.said)
				leave(first)
				d := <-result
				requireError(t, d.err, "")
				_, refused := errors.AsType[*uv.HandshakeError](d.err)
				require.True(t, refused || isDialError(d.err), "%v", d.err) // the reset may come before connecting is over
				v.unharmed(t)
			})
		}
	}
	v.quiet(t)
	v.alive(t)
}

// Who can cut a connection must not be able to pass that for its end.
func TestTLSCut(t *testing.T) {
	t.Parallel()
	t.Run("compatible", func(t *testing.T) {
		t.Parallel()
		asWhom(t, overTLS(t), roles, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
			for _, conn := range []string{"descriptor", "reply", "channel basic"} {
				for name, begin := range spoilers {
					t.Run(conn+", "+name, func(t *testing.T) {
						a := open(t)
						begin(a.conn(conn))
						a.conn(conn).cut()
						requireBroken(t, a.pipe, conn, pipe.ErrPeerLost)
						v.unharmed(t)
					})
				}
			}
		})
	})
	t.Run("native", func(t *testing.T) {
		t.Parallel()
		asWhom(t, overTLS(t), nativeRoles, cutNatively)
	})
}

// spoilers are what may come before a cut.
var spoilers = map[string]func(*raw){
	"between two records": func(*raw) {},
	"within a header":     func(r *raw) { _, _ = r.tcp.Write([]byte{23, 3, 3}) },
	"within a record":     func(r *raw) { _, _ = r.tcp.Write([]byte{23, 3, 3, 1, 0, 1, 2, 3}) },
}

func cutNatively(t *testing.T, v *victim, open func(testing.TB) *intruder) {
	for name, begin := range spoilers {
		t.Run("idle, "+name, func(t *testing.T) {
			n := open(t)
			n.exchange()
			begin(n.first)
			n.first.cut()
			n.requireDown(anywhere, pipe.ErrPeerLost)
			v.unharmed(t)
		})
		t.Run("behind the goodbye, "+name, func(t *testing.T) {
			n := open(t)
			n.control(native.Control{Kind: native.Goodbye})
			n.exchangeInbound(t)
			begin(n.first)
			n.first.cut()
			require.ErrorIs(t, next(t, n.pipe), pipe.ErrPeerLost)
			require.NoError(t, n.pipe.Close())
			v.unharmed(t)
		})
		t.Run("bulk, "+name, func(t *testing.T) {
			n := open(t)
			bulk, read := n.reading(1 << 20)
			bulk.send(n.chunk(0, 1000, false, native.ChunkTrailer{}))
			begin(bulk)
			bulk.cut()
			requireError(t, <-read, "bulk", pipe.ErrPeerLost)
			n.first.Close()
			n.requireDown([]string{"bulk", "message", "control"}, pipe.ErrPeerLost) // whichever is first
			v.unharmed(t)
		})
	}
}

// Bytes that were changed on their way, or made up.
func TestTLSForgedRecords(t *testing.T) {
	t.Parallel()
	forgeries := map[string][]byte{
		"a record that nobody sealed": slices.Concat([]byte{23, 3, 3, 0, 100}, make([]byte, 100)),
		"a record too short":          {23, 3, 3, 0, 1, 0},
		"a record too long":           slices.Concat([]byte{23, 3, 3, 255, 255}, make([]byte, 65535)),
		"of another version":          slices.Concat([]byte{23, 9, 9, 0, 100}, make([]byte, 100)),
		"of another kind":             slices.Concat([]byte{99, 3, 3, 0, 100}, make([]byte, 100)),
		"an alert in the clear":       {21, 3, 3, 0, 2, 1, 0}, // close_notify
		"another protocol":            []byte("GET / HTTP/1.1\r\nHost: pipe\r\n\r\n"),
	}
	for name, forged := range forgeries {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Run("compatible", func(t *testing.T) {
				asWhom(t, overTLS(t), roles, func(t *testing.T, _ *victim, open func(testing.TB) *attack) {
					a := open(t)
					_, _ = a.desc.tcp.Write(forged)
					requireBroken(t, a.pipe, "descriptor", pipe.ErrProtocol)
				})
			})
			t.Run("native", func(t *testing.T) {
				asWhom(t, overTLS(t), nativeRoles, func(t *testing.T, _ *victim, open func(testing.TB) *intruder) {
					n := open(t)
					_, _ = n.first.tcp.Write(forged)
					n.requireDown(anywhere, pipe.ErrProtocol)

					n = open(t)
					bulk, read := n.reading(1 << 20)
					_, _ = bulk.tcp.Write(forged)
					requireError(t, <-read, "bulk", pipe.ErrProtocol)
					await(t, func() bool { return n.pipe.Err() != nil }, "the pipe breaks")
					n.first.Close() // the victim would give it a second to do so
					n.requireDown([]string{"bulk"}, pipe.ErrProtocol)
				})
			})
		})
	}
}
