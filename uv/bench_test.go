package uv_test

import (
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// The benchmarks measure the transport and, for comparison, the same bytes on TCP sockets, with a
// reader that knows what to expect.

// ends makes the connections to be measured.
var ends = map[string]func(testing.TB) (near, far transport.Conn){
	"uv": loopback,
	"tls": func(t testing.TB) (near, far transport.Conn) {
		tr := newSecured(newAuthority(t).mutual(t, "127.0.0.1"))
		l, err := tr.Listen(t.Context(), "127.0.0.1")
		require.NoError(t, err)
		defer l.Close()
		return connect(t, tr, l, l.Addr())
	},
}

// pingPong measures how long ask takes, which sends a request and waits for the reply. A goroutine
// calls echo, which reads one request and replies, until echo fails.
func pingPong(b *testing.B, ask, echo func() error) {
	b.Helper()
	go func() {
		for echo() == nil {
		}
	}()
	b.ReportAllocs()
	for b.Loop() {
		if err := ask(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPingPong measures round trips of a frame of 8 bytes over the transport, with and without
// TLS, and of 16 bytes over a TCP socket.
func BenchmarkPingPong(b *testing.B) {
	for name, ends := range ends {
		b.Run(name, func(b *testing.B) {
			near, far := ends(b)
			question, answer := []transport.Frame{{make([]byte, 8)}}, []transport.Frame{{make([]byte, 8)}}
			handshake := func(c transport.Conn, f transport.Frame) error {
				if _, err := c.NextFrame(); err != nil {
					return err
				}
				return c.ReadBody(f...)
			}
			pingPong(b, func() error {
				if err := near.WriteFrames(question...); err != nil {
					return err
				}
				return handshake(near, question[0])
			}, func() error {
				if err := handshake(far, answer[0]); err != nil {
					return err
				}
				return far.WriteFrames(answer...)
			})
		})
	}
	b.Run("tcp", func(b *testing.B) {
		near, far := sockets(b)
		question, answer := make([]byte, 16), make([]byte, 16)
		pingPong(b, func() error {
			if _, err := near.Write(question); err != nil {
				return err
			}
			_, err := io.ReadFull(near, question)
			return err
		}, func() error {
			if _, err := io.ReadFull(far, answer); err != nil {
				return err
			}
			_, err := far.Write(answer)
			return err
		})
	})
}

// oneWay measures how long it takes to send size bytes with send until handshake, which runs on
// another goroutine and receives them, has returned. handshake is called until it fails.
func oneWay(b *testing.B, size int64, send, handshake func() error) {
	b.Helper()
	arrived := make(chan struct{})
	go func() {
		defer close(arrived)
		for handshake() == nil {
			arrived <- struct{}{}
		}
	}()
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		if err := send(); err != nil {
			b.Fatal(err)
		}
		<-arrived
	}
}

// BenchmarkOneWay measures how long 16 MiB take until the peer has received them, over the
// transport, with and without TLS, and over a TCP socket.
func BenchmarkOneWay(b *testing.B) {
	const size = 16 << 20
	for name, ends := range ends {
		b.Run(name, func(b *testing.B) {
			near, far := ends(b)
			sent, got := []transport.Frame{{make([]byte, size)}}, [][]byte{make([]byte, size)}
			oneWay(b, size, func() error { return near.WriteFrames(sent...) }, func() error {
				if _, err := far.NextFrame(); err != nil {
					return err
				}
				return far.ReadBody(got...)
			})
		})
	}
	b.Run("tcp", func(b *testing.B) {
		near, far := sockets(b)
		sent, got := make([]byte, size), make([]byte, size)
		oneWay(b, size, func() error {
			_, err := near.Write(sent)
			return err
		}, func() error {
			_, err := io.ReadFull(far, got)
			return err
		})
	})
}

// sockets returns both ends of a new TCP connection on the loopback interface. They are closed when
// the benchmark ends.
func sockets(b *testing.B) (dialled, accepted net.Conn) {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	defer l.Close()
	dialled, err = net.Dial("tcp", l.Addr().String())
	require.NoError(b, err)
	b.Cleanup(func() { dialled.Close() })
	accepted, err = l.Accept()
	require.NoError(b, err)
	b.Cleanup(func() { accepted.Close() })
	return dialled, accepted
}
