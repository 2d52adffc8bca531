package uv_test

import (
	"bytes"
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/transporttest"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

func TestConformanceWithoutSpinning(t *testing.T) {
	short.Skip(t, "the conformance suite once more")
	b := backend("uv-asleep", "127.0.0.1:0")
	b.New = func(*testing.T) transport.Transport { return uv.New(uv.WithSpin(0)) }
	transporttest.Run(t, b)
}

func TestConformanceWithBusyPolling(t *testing.T) {
	b := backend("uv-busy", "127.0.0.1:0")
	b.New = func(*testing.T) transport.Transport { return uv.New(uv.WithBusyPolling()) }
	transporttest.Run(t, b)
}

func rawStream(t testing.TB, c transport.Conn) transport.Stream {
	t.Helper()
	s, err := c.(transport.Multiplexer).Stream()
	require.NoError(t, err)
	return s
}

func TestHandedOverOnce(t *testing.T) {
	for name, handOver := range map[string]func(transport.Conn) (io.Closer, error){
		"stream": func(c transport.Conn) (io.Closer, error) { return c.(transport.Multiplexer).Stream() },
		"session": func(c transport.Conn) (io.Closer, error) {
			return c.(transport.Multiplexer).Multiplex(transport.SessionConfig{MaxStreams: 1, Client: true})
		},
	} {
		for kind, ends := range ends {
			t.Run(name+" "+kind, func(t *testing.T) {
				c, _ := ends(t)
				taken, err := handOver(c)
				require.NoError(t, err)
				_, err = c.(transport.Multiplexer).Stream()
				require.Equal(t, uv.ErrHandedOver, err)
				_, err = c.(transport.Multiplexer).Multiplex(transport.SessionConfig{})
				require.Equal(t, uv.ErrHandedOver, err)
				require.Equal(t, uv.ErrHandedOver, c.WriteFrames(transport.Frame{}))
				_, err = c.NextFrame()
				require.Equal(t, uv.ErrHandedOver, err)
				require.Equal(t, uv.ErrHandedOver, c.ReadBody())
				require.NotEmpty(t, c.RemoteAddr())
				require.NoError(t, taken.Close())

				closed, _ := ends(t)
				require.NoError(t, closed.Close())
				_, err = handOver(closed)
				require.ErrorIs(t, err, transport.ErrClosed)
			})
		}
	}
}

// TestGatheringGoesOnAfterADeadline checks that a call of WriteBuffers that a write deadline
// interrupts can be continued by a second call with the buffers that are left: all bytes arrive
// once and in order.
func TestGatheringGoesOnAfterADeadline(t *testing.T) {
	for kind, ends := range ends {
		t.Run(kind, func(t *testing.T) {
			near, far := ends(t)
			gatherAfterADeadline(t, rawStream(t, near), rawStream(t, far))
		})
	}
}

// gatherAfterADeadline checks that WriteBuffers of w can be continued after a deadline, so that r
// reads all bytes once and in order.
func gatherAfterADeadline(t *testing.T, w, r transport.Stream) {
	t.Helper()
	const pieces, size = 300, 100_000
	count := make([]byte, 256+size)
	for i := range count {
		count[i] = byte(i)
	}
	piece := func(i int) []byte { return count[i%256:][:size] }
	var rest net.Buffers
	for i := range pieces {
		rest = append(rest, piece(i))
	}
	type result struct {
		n   int64
		err error
	}
	gather := func() result {
		n, err := w.(transport.Gatherer).WriteBuffers(&rest)
		return result{n, err}
	}
	writing := testwait.Start(gather)
	runtime.Gosched()
	require.NoError(t, w.SetWriteDeadline(time.Unix(1, 0)))
	first := testwait.Finish(t, writing)
	require.ErrorIs(t, first.err, os.ErrDeadlineExceeded)
	require.NoError(t, w.SetWriteDeadline(time.Time{}))
	ended := testwait.Start(func() result {
		defer w.CloseWrite()
		return gather()
	})
	got, err := io.ReadAll(r)
	require.NoError(t, err)
	second := testwait.Finish(t, ended)
	require.NoError(t, second.err)
	require.EqualValues(t, pieces*size, first.n+second.n)
	require.Len(t, got, pieces*size)
	for i := range pieces {
		require.True(t, bytes.Equal(piece(i), got[i*size:][:size]), "piece %d", i)
	}
}

// TestReadDeadlineWithinARecord checks that a stream over TLS loses no bytes if reads end by a
// deadline, also in the middle of a record.
func TestReadDeadlineWithinARecord(t *testing.T) {
	near, far := ends["tls"](t)
	w, r := rawStream(t, near), rawStream(t, far)
	sent := make([]byte, 1<<20)
	for i := range sent {
		sent[i] = byte(i * i >> 8)
	}
	written := testwait.Start(func() error {
		_, err := w.Write(sent)
		return err
	})
	var got []byte
	p := make([]byte, 5000)
	for try := 0; len(got) < len(sent); try++ {
		r.SetReadDeadline(time.Now().Add(time.Duration(try%50) * time.Microsecond))
		n, err := r.Read(p)
		got = append(got, p[:n]...)
		if err != nil {
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		}
	}
	require.NoError(t, testwait.Finish(t, written))
	require.Equal(t, string(sent), string(got))
}

// inUse returns the bytes of the heap and of the stacks of goroutines that are in use after a
// garbage collection.
func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// TestIdleConnectionsAreSmall checks the memory that an end of an idle stream or session takes:
// less than 4 KiB and 40 KiB. Both ends are in this process. A thread that starts during the test
// takes some 50 KiB, so the smallest of up to three rounds counts.
func TestIdleConnectionsAreSmall(t *testing.T) {
	const connections = 50
	for _, c := range []struct {
		name     string
		limit    int64
		handOver func(c transport.Conn, client bool) (io.Closer, error)
	}{
		{"stream", 4 << 10, func(c transport.Conn, _ bool) (io.Closer, error) {
			return c.(transport.Multiplexer).Stream()
		}},
		{"session", 40 << 10, func(c transport.Conn, client bool) (io.Closer, error) {
			return c.(transport.Multiplexer).Multiplex(transport.SessionConfig{MaxStreams: 16, Client: client})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var open []io.Closer
			each := int64(math.MaxInt64)
			for round := 0; round < 3 && each >= c.limit; round++ {
				buffered := inUse()
				for range connections {
					near, far := loopback(t)
					for _, end := range []transport.Conn{near, far} {
						taken, err := c.handOver(end, end == near)
						require.NoError(t, err)
						open = append(open, taken)
					}
				}
				each = min(each, (inUse()-buffered)/(2*connections))
			}
			t.Logf("%d bytes for each end", each)
			require.Less(t, each, c.limit)
			for _, o := range open {
				require.NoError(t, o.Close())
			}
		})
	}
}
