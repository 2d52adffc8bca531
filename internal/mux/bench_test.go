package mux_test

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/libp2p/go-yamux/v4"
	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/mux"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// peerVariable is the environment variable with the kind of benchmark of which a child process is
// the other end.
const peerVariable = "TENSORPIPE_MUX_PEER"

// play is the other end of the stream, in a goroutine or a process of its own. order is a kind of
// session and an address, to which play dials. It calls serve and returns when the stream ends.
func play(order string) {
	kind, addr, _ := strings.Cut(order, " ")
	c, err := net.Dial("tcp", addr)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	s, done, err := kinds[kind](c.(*net.TCPConn), true)
	if err != nil {
		panic(err)
	}
	defer done()
	serve(s)
}

// kinds make a stream of a connection.
var kinds = map[string]func(c *net.TCPConn, dialled bool) (s net.Conn, done func() error, err error){
	"bare": func(c *net.TCPConn, _ bool) (net.Conn, func() error, error) { return c, c.Close, nil },
	"yamux": func(c *net.TCPConn, dialled bool) (net.Conn, func() error, error) {
		cfg := yamux.DefaultConfig()
		cfg.EnableKeepAlive = false
		cfg.InitialStreamWindowSize = 4 << 20
		if dialled {
			s, err := yamux.Client(c, cfg, nil)
			if err != nil {
				return nil, nil, err
			}
			st, err := s.Open(context.Background())
			return st, s.Close, err
		}
		s, err := yamux.Server(c, cfg, nil)
		if err != nil {
			return nil, nil, err
		}
		st, err := s.Accept()
		return st, s.Close, err
	},
	"session": func(c *net.TCPConn, dialled bool) (net.Conn, func() error, error) {
		s, err := mux.New(socket{c}, transport.SessionConfig{Client: dialled, MaxStreams: 1})
		if err != nil {
			return nil, nil, err
		}
		if dialled {
			st, err := s.Open()
			return st, s.Close, err
		}
		st, err := s.Accept(context.Background())
		return st, s.Close, err
	},
}

const block = 64

// serve reads from s until that fails. It sends a read of the size block back, and does not answer
// longer ones.
func serve(s net.Conn) {
	p := make([]byte, 1<<20)
	for {
		n, err := s.Read(p)
		if err != nil {
			return
		}
		if n == block {
			s.Write(p[:n])
		}
	}
}

// against returns a stream of that kind whose other end calls serve, in a goroutine or, if where is
// "process", in another process. The stream is closed when the benchmark ends.
func against(b *testing.B, kind, where string) net.Conn {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	defer l.Close()
	order := kind + " " + l.Addr().String()
	if where == "process" {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), peerVariable+"="+order)
		require.NoError(b, cmd.Start())
		b.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	} else {
		go play(order)
	}
	c, err := l.Accept()
	require.NoError(b, err)
	s, done, err := kinds[kind](c.(*net.TCPConn), false)
	require.NoError(b, err)
	b.Cleanup(func() { done() })
	return s
}

func everywhere(b *testing.B, f func(b *testing.B, s net.Conn)) {
	for _, where := range []string{"goroutine", "process"} {
		for _, kind := range []string{"bare", "yamux", "session"} {
			b.Run("peer="+where+"/stream="+kind, func(b *testing.B) {
				s := against(b, kind, where)
				b.ReportAllocs()
				f(b, s)
			})
		}
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	everywhere(b, func(b *testing.B, s net.Conn) {
		p := make([]byte, block)
		for b.Loop() {
			s.Write(p)
			_, err := io.ReadFull(s, p)
			require.NoError(b, err)
		}
	})
}

func BenchmarkOneWay(b *testing.B) {
	everywhere(b, func(b *testing.B, s net.Conn) {
		p := make([]byte, 1<<20)
		b.SetBytes(int64(len(p)))
		for b.Loop() {
			_, err := s.Write(p)
			require.NoError(b, err)
		}
	})
}

// BenchmarkIdle reports the memory of one end of a session with two streams on
// which one message was exchanged.
func BenchmarkIdle(b *testing.B) {
	for b.Loop() {
		const ends = 2 * 100
		before := inUse()
		var keep []transport.Session
		for range ends / 2 {
			client, server := sessions(b, transport.SessionConfig{MaxStreams: 64})
			for range 2 {
				o, a := streams(b, client, server)
				exchangeMessage(b, o, a)
				exchangeMessage(b, a, o)
			}
			keep = append(keep, client, server)
		}
		b.ReportMetric(float64(inUse()-before)/ends, "B/end")
		for _, s := range keep {
			s.Close()
		}
	}
}

func exchangeMessage(b testing.TB, from, to transport.Stream) {
	_, err := from.Write(make([]byte, block))
	require.NoError(b, err)
	_, err = io.ReadFull(to, make([]byte, block))
	require.NoError(b, err)
}

func inUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}
