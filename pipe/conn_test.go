package pipe_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// connContext returns a context with the transport over and these limits, which is closed when the
// test ends.
func connContext(t testing.TB, over pathTransport, limits pipe.Limits) *pipe.Context {
	t.Helper()
	if over.refused != nil {
		t.Skip(over.refused)
	}
	c, err := pipe.New(pipe.Options{Transports: []pipe.TransportEntry{over.entry()}, Limits: limits})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// connEnds is a listener of Conns and a context that dials it.
type connEnds struct {
	client, server *pipe.Context
	listener       net.Listener
}

// listenConns returns two contexts, and a listener of the second one.
func listenConns(t testing.TB, over pathTransport, limits pipe.Limits) connEnds {
	t.Helper()
	e := connEnds{client: connContext(t, over, pipe.Limits{}), server: connContext(t, over, limits)}
	var err error
	e.listener, err = e.server.ListenConn(t.Context(), over.url)
	require.NoError(t, err)
	return e
}

// dial returns a new Conn and its other end.
func (e connEnds) dial(t testing.TB) (dialled, accepted *pipe.Conn) {
	t.Helper()
	d, err := e.client.DialConn(t.Context(), e.listener.Addr().String())
	require.NoError(t, err)
	a, err := e.listener.Accept()
	require.NoError(t, err)
	return d.(*pipe.Conn), a.(*pipe.Conn)
}

func TestConnConforms(t *testing.T) {
	for _, over := range transports() {
		t.Run(over.name, func(t *testing.T) {
			leakcheck.Check(t)
			e := listenConns(t, over, pipe.Limits{})
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				d, a := e.dial(t)
				return d, a, func() { d.Close(); a.Close() }, nil
			})
		})
	}
}

// TestConnsShareSession opens Conns concurrently and checks that they share one session, and that
// each has bytes of its own.
func TestConnsShareSession(t *testing.T) {
	for _, over := range transports() {
		t.Run(over.name, func(t *testing.T) {
			leakcheck.Check(t)
			e := listenConns(t, over, pipe.Limits{})
			const n = 20
			echoed := testwait.Start(func() error {
				for range n {
					conn, err := e.listener.Accept()
					if err != nil {
						return err
					}
					go func() {
						_, _ = io.Copy(conn, conn)
						_ = conn.Close()
					}()
				}
				return nil
			})
			var done []<-chan error
			for i := range n {
				done = append(done, testwait.Start(func() error { return echo(e.client, e.listener.Addr().String(), byte(i)) }))
			}
			for _, d := range done {
				require.NoError(t, testwait.Finish(t, d))
			}
			require.NoError(t, testwait.Finish(t, echoed))
			require.Equal(t, 1, e.client.Stats().ConnSessionsOpen)
			require.Equal(t, 1, e.server.Stats().ConnSessionsOpen)
			require.EqualValues(t, 1, e.server.Stats().HandshakesDone)
		})
	}
}

// echo opens a Conn, writes b many times, closes the writing half, and checks the bytes that the peer sends back.
func echo(c *pipe.Context, url string, b byte) error {
	conn, err := c.DialConn(context.Background(), url)
	if err != nil {
		return err
	}
	defer conn.Close()
	sent := make([]byte, 100_000)
	for i := range sent {
		sent[i] = b
	}
	wrote := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		if err == nil {
			err = conn.(*pipe.Conn).CloseWrite()
		}
		wrote <- err
	}()
	got, err := io.ReadAll(conn)
	if err == nil {
		err = <-wrote
	}
	if err == nil && string(got) != string(sent) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// TestConnErrors checks the errors of the calls on a Conn after each kind of end.
func TestConnErrors(t *testing.T) {
	for _, over := range transports() {
		t.Run(over.name, func(t *testing.T) {
			leakcheck.Check(t)
			e := listenConns(t, over, pipe.Limits{})
			d, a := e.dial(t)
			var b [1]byte

			require.NoError(t, d.SetReadDeadline(time.Unix(1, 0)))
			_, err := d.Read(b[:])
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			var network net.Error
			require.ErrorAs(t, err, &network)
			require.True(t, network.Timeout())
			require.NoError(t, d.SetReadDeadline(time.Time{}))

			_, err = d.Write([]byte("last"))
			require.NoError(t, err)
			require.NoError(t, d.CloseWrite())
			_, err = d.Write(b[:])
			require.ErrorIs(t, err, net.ErrClosed)
			rest, err := io.ReadAll(a)
			require.NoError(t, err)
			require.Equal(t, "last", string(rest))
			_, err = a.Write(b[:])
			require.NoError(t, err)
			_, err = io.ReadFull(d, b[:])
			require.NoError(t, err)

			require.NoError(t, d.Close())
			require.ErrorIs(t, d.Close(), net.ErrClosed)
			_, err = d.Read(b[:])
			require.ErrorIs(t, err, net.ErrClosed)
			require.NoError(t, a.Close())

			d, a = e.dial(t)
			require.NoError(t, e.client.Close())
			_, err = d.Read(b[:])
			require.ErrorIs(t, err, net.ErrClosed)
			_, err = a.Read(b[:])
			require.ErrorIs(t, err, pipe.ErrPeerLost)
			require.NotErrorIs(t, err, io.EOF)
			_, err = e.client.DialConn(t.Context(), e.listener.Addr().String())
			require.ErrorIs(t, err, net.ErrClosed)
			require.NoError(t, a.Close())
			require.NoError(t, d.Close())
		})
	}
}

// TestConnCloseWithUnreadPeer checks that Close returns although the peer reads nothing and a Write
// is blocked.
func TestConnCloseWithUnreadPeer(t *testing.T) {
	for _, over := range transports() {
		t.Run(over.name, func(t *testing.T) {
			leakcheck.Check(t)
			e := listenConns(t, over, pipe.Limits{})
			d, a := e.dial(t)
			wrote := testwait.Start(func() error {
				_, err := d.Write(make([]byte, 64<<20))
				return err
			})
			_, err := io.ReadFull(a, make([]byte, 1))
			require.NoError(t, err)
			closed := testwait.Start(d.Close)
			require.NoError(t, testwait.Finish(t, closed))
			require.ErrorIs(t, testwait.Finish(t, wrote), net.ErrClosed)
			require.NoError(t, a.Close())
		})
	}
}

// TestConnLimits checks that a client gets no more Conns, and a listener no more sessions, than
// their limits permit, with errors that name the limit, and that a Conn can be opened again after
// another one was closed.
func TestConnLimits(t *testing.T) {
	for _, over := range transports() {
		t.Run(over.name, func(t *testing.T) {
			leakcheck.Check(t)
			e := listenConns(t, over, pipe.Limits{MaxConns: 2, MaxConnSessions: 1})
			url := e.listener.Addr().String()
			first, firstAccepted := e.dial(t)
			e.dial(t)
			_, err := e.client.DialConn(t.Context(), url)
			require.ErrorIs(t, err, pipe.ErrLimit)
			require.ErrorContains(t, err, "Limits.MaxConns")
			require.NoError(t, firstAccepted.Close())
			require.NoError(t, first.Close())
			e.dial(t)

			other := connContext(t, over, pipe.Limits{})
			_, err = other.DialConn(t.Context(), url)
			require.ErrorIs(t, err, pipe.ErrLimit)
			require.ErrorContains(t, err, "limit exceeded: sessions (Limits.MaxConnSessions) of 2, limit is 1")
		})
	}
}

// TestConnsAndPipes checks that a listener accepts pipes and Conns on one address once Conns was
// called, and otherwise rejects the other kind with a reason.
func TestConnsAndPipes(t *testing.T) {
	for _, over := range transports() {
		t.Run(over.name, func(t *testing.T) {
			leakcheck.Check(t)
			client, server := connContext(t, over, pipe.Limits{}), connContext(t, over, pipe.Limits{})
			l, err := server.Listen(t.Context(), over.url)
			require.NoError(t, err)
			url := l.URLs()[0]
			_, err = client.DialConn(t.Context(), url)
			require.ErrorIs(t, err, pipe.ErrNotAccepted)
			require.ErrorContains(t, err, "Listener.Conns")

			conns := l.Conns()
			require.Same(t, conns, l.Conns())
			require.Equal(t, url, conns.Addr().String())
			network, _, _ := strings.Cut(url, ":")
			require.Equal(t, network, conns.Addr().Network())
			conn, err := client.DialConn(t.Context(), url)
			require.NoError(t, err)
			accepted, err := conns.Accept()
			require.NoError(t, err)
			p, err := client.Dial(t.Context(), url)
			require.NoError(t, err)
			q, err := l.Accept(t.Context())
			require.NoError(t, err)
			require.NoError(t, q.Close())
			require.NoError(t, p.Close())

			require.NoError(t, conns.Close())
			_, err = conns.Accept()
			require.ErrorIs(t, err, net.ErrClosed)
			_, err = conn.Write([]byte("x")) // the Conn that was accepted stays open
			require.NoError(t, err)
			_, err = io.ReadFull(accepted, make([]byte, 1))
			require.NoError(t, err)
			_, err = connContext(t, over, pipe.Limits{}).DialConn(t.Context(), url)
			require.ErrorIs(t, err, pipe.ErrNotAccepted)

			only, err := connContext(t, over, pipe.Limits{}).ListenConn(t.Context(), over.url)
			require.NoError(t, err)
			_, err = client.Dial(t.Context(), only.Addr().String())
			require.ErrorIs(t, err, pipe.ErrNotAccepted)
			require.ErrorContains(t, err, "DialConn")
		})
	}
}

// TestConnNeedsNative checks that a Conn fails with ErrDialect if one end is configured for the
// compatible dialect.
func TestConnNeedsNative(t *testing.T) {
	for _, compatible := range []string{"client", "server"} {
		t.Run(compatible, func(t *testing.T) {
			leakcheck.Check(t)
			over := transports()[0]
			options := func(end string) pipe.Options {
				o := pipe.Options{Transports: []pipe.TransportEntry{over.entry()}}
				if end == compatible {
					o.Dialect = pipe.DialectCompatible
				}
				return o
			}
			client, err := pipe.New(options("client"))
			require.NoError(t, err)
			defer client.Close()
			server, err := pipe.New(options("server"))
			require.NoError(t, err)
			defer server.Close()
			l, err := server.ListenConn(t.Context(), over.url)
			require.NoError(t, err)
			_, err = client.DialConn(t.Context(), l.Addr().String())
			require.ErrorIs(t, err, pipe.ErrDialect)
		})
	}
}

// TestConnTLS checks that a Conn over TLS has the state of its connection, and others have none.
func TestConnTLS(t *testing.T) {
	for _, over := range transports() {
		t.Run(over.name, func(t *testing.T) {
			leakcheck.Check(t)
			e := listenConns(t, over, pipe.Limits{})
			d, a := e.dial(t)
			for _, conn := range []*pipe.Conn{d, a} {
				state, secured := conn.TLS()
				require.Equal(t, over.name == "tls", secured)
				if secured {
					require.Equal(t, "both ends", state.PeerCertificates[0].Subject.CommonName)
				}
				require.Equal(t, pipe.DialectNative, conn.Plan().Dialect)
			}
		})
	}
}

// TestConnPeerRestarts checks that DialConn opens another session once the peer has ended the first
// one, and connects to the listener that then has the address.
func TestConnPeerRestarts(t *testing.T) {
	for _, over := range transports() {
		t.Run(over.name, func(t *testing.T) {
			leakcheck.Check(t)
			e := listenConns(t, over, pipe.Limits{})
			d, _ := e.dial(t)
			url := e.listener.Addr().String()
			require.NoError(t, e.server.Close())
			_, err := d.Read(make([]byte, 1))
			require.ErrorIs(t, err, pipe.ErrPeerLost)

			e.server = connContext(t, over, pipe.Limits{})
			e.listener, err = e.server.ListenConn(t.Context(), url)
			require.NoError(t, err)
			d, a := e.dial(t)
			_, err = d.Write([]byte("x"))
			require.NoError(t, err)
			_, err = io.ReadFull(a, make([]byte, 1))
			require.NoError(t, err)
		})
	}
}

// TestDialConnEnds checks that DialConn returns when its ctx ends although the server does not
// answer.
func TestDialConnEnds(t *testing.T) {
	leakcheck.Check(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	c := connContext(t, transports()[1], pipe.Limits{})
	ctx, cancel := context.WithCancelCause(t.Context())
	dialled := testwait.Start(func() error {
		_, err := c.DialConn(ctx, "uv://"+silent.Addr().String())
		return err
	})
	testwait.WaitIdle(t)
	cause := errors.New("the caller has given up")
	cancel(cause)
	require.ErrorIs(t, testwait.Finish(t, dialled), cause)
}

// TestConnUnadmitted checks that the bytes that a stranger sends and that are not read are charged
// to Limits.UnadmittedBytes, whose excess ends its Conns with ErrLimit, and that those of an
// admitted peer are not charged.
func TestConnUnadmitted(t *testing.T) {
	for _, admitted := range []bool{false, true} {
		t.Run(fmt.Sprintf("admitted %t", admitted), func(t *testing.T) {
			leakcheck.Check(t)
			e := listenConns(t, transports()[1], pipe.Limits{UnadmittedBytes: 300 << 10})
			var dialled, accepted []*pipe.Conn
			for range 3 {
				d, a := e.dial(t)
				if admitted {
					a.Admit()
				}
				dialled, accepted = append(dialled, d), append(accepted, a)
			}
			for _, d := range dialled {
				_, err := d.Write(make([]byte, 200<<10))
				require.True(t, err == nil || !admitted, err)
			}
			for i, a := range accepted {
				if admitted {
					_, err := io.CopyN(io.Discard, a, 200<<10)
					require.NoError(t, err)
					continue
				}
				_, err := dialled[i].Read(make([]byte, 1))
				require.ErrorIs(t, err, pipe.ErrPeerLost)
				_, err = io.Copy(io.Discard, a) // what arrived before
				require.ErrorIs(t, err, pipe.ErrLimit)
			}
			require.Eventually(t, func() bool { return e.server.Stats().BytesUnadmitted == 0 }, testwait.Limit, time.Millisecond)
		})
	}
}
