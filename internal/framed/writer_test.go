package framed_test

import (
	"encoding/binary"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/framed"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func connect(t *testing.T) (near, far transport.Conn) {
	t.Helper()
	tr := mem.New(nil)
	l, err := tr.Listen(t.Context(), "")
	require.NoError(t, err)
	defer l.Close()
	near, err = tr.Dial(t.Context(), l.Addr())
	require.NoError(t, err)
	far, err = l.Accept(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

// TestWriter checks that frames that several goroutines push arrive whole, and those of one
// goroutine in order. After Close, Run returns net.ErrClosed, and frames that are pushed later are
// not written.
func TestWriter(t *testing.T) {
	near, far := connect(t)
	w := framed.NewWriter(func(dst []byte, f [2]uint64) []byte {
		return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(dst, f[0]), f[1])
	})
	ended := make(chan error, 1)
	go func() { ended <- w.Run(near) }()
	const writers, frames = 3, 500
	var wg sync.WaitGroup
	for i := range uint64(writers) {
		wg.Go(func() {
			for k := range uint64(frames) {
				w.Push([2]uint64{i, k})
			}
		})
	}
	var next [writers]uint64
	r := framed.Reader{Conn: far, Limit: 16}
	for range writers * frames {
		p, err := r.Next()
		require.NoError(t, err)
		require.Len(t, p, 16)
		i := binary.LittleEndian.Uint64(p)
		require.Equal(t, next[i], binary.LittleEndian.Uint64(p[8:]))
		next[i]++
	}
	wg.Wait()
	w.Close()
	require.Equal(t, net.ErrClosed, <-ended)
	w.Push([2]uint64{})
	require.Equal(t, net.ErrClosed, w.Run(near))
}

// TestWriterOfABrokenConnection checks that Run returns the error of the connection if a write
// fails.
func TestWriterOfABrokenConnection(t *testing.T) {
	near, _ := connect(t)
	require.NoError(t, near.Close())
	w := framed.NewWriter(func(dst []byte, f byte) []byte { return append(dst, f) })
	w.Push(1)
	require.ErrorIs(t, w.Run(near), transport.ErrClosed)
}

// TestReader checks that Next returns frames of any size up to the limit, also those larger than
// the Reader's own buffer. For an empty frame and for a larger one the error matches ErrProtocol.
func TestReader(t *testing.T) {
	near, far := connect(t)
	r := framed.Reader{Conn: far, Limit: 100}
	for _, n := range []int{1, 64, 65, 100} {
		want := make([]byte, n)
		want[n-1] = byte(n)
		require.NoError(t, near.WriteFrames(transport.Frame{want}))
		p, err := r.Next()
		require.NoError(t, err)
		require.Equal(t, want, p)
	}
	for _, n := range []int{0, 101} {
		near, far := connect(t)
		require.NoError(t, near.WriteFrames(transport.Frame{make([]byte, n)}))
		r := framed.Reader{Conn: far, Limit: 100}
		_, err := r.Next()
		require.ErrorIs(t, err, channel.ErrProtocol)
	}
}
