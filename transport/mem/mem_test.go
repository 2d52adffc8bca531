package mem_test

import (
	"io"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// connect returns both ends of a new connection of a transport with the options opts. They are
// closed when the test ends.
func connect(t *testing.T, opts ...mem.Option) (dialled, accepted transport.Conn) {
	t.Helper()
	tr := mem.New(nil, opts...)
	l, err := tr.Listen(t.Context(), "")
	require.NoError(t, err)
	defer l.Close()
	dialled, err = tr.Dial(t.Context(), l.Addr())
	require.NoError(t, err)
	accepted, err = l.Accept(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { dialled.Close(); accepted.Close() })
	return dialled, accepted
}

func TestAddressesMatchAndAreUnique(t *testing.T) {
	tr := mem.New(nil)
	l, err := tr.Listen(t.Context(), "name")
	require.NoError(t, err)
	defer l.Close()
	require.Equal(t, "name", l.Addr())

	seen := map[string]bool{}
	for range 3 {
		d, err := tr.Dial(t.Context(), "name")
		require.NoError(t, err)
		defer d.Close()
		a, err := l.Accept(t.Context())
		require.NoError(t, err)
		defer a.Close()
		require.Equal(t, d.LocalAddr(), a.RemoteAddr())
		require.Equal(t, d.RemoteAddr(), a.LocalAddr())
		for _, addr := range []string{d.LocalAddr(), a.LocalAddr()} {
			require.False(t, seen[addr], addr)
			seen[addr] = true
		}
	}
}

func TestNamesBelongToTheNetwork(t *testing.T) {
	network := mem.NewNetwork()
	a, b, other := mem.New(network), mem.New(network), mem.New(nil)

	l, err := a.Listen(t.Context(), "here")
	require.NoError(t, err)
	_, err = b.Listen(t.Context(), "here")
	require.ErrorIs(t, err, syscall.EADDRINUSE)

	c, err := b.Dial(t.Context(), "here")
	require.NoError(t, err)
	require.NoError(t, c.Close())
	_, err = other.Dial(t.Context(), "here")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.ErrorContains(t, err, "here")

	require.True(t, a.CanCommunicate(b.DomainDescriptor()))
	require.False(t, a.CanCommunicate(other.DomainDescriptor()))

	require.NoError(t, l.Close())
	again, err := b.Listen(t.Context(), "here")
	require.NoError(t, err, "Close frees the name")
	require.NoError(t, again.Close())
}

func TestPickedNamesAreFree(t *testing.T) {
	tr := mem.New(nil)
	taken, err := tr.Listen(t.Context(), "listener1")
	require.NoError(t, err)
	defer taken.Close()
	picked, err := tr.Listen(t.Context(), "")
	require.NoError(t, err)
	defer picked.Close()
	require.NotEqual(t, taken.Addr(), picked.Addr())
}

// TestWriterBlocksAtLimit checks that a writer blocks when the connection holds the bytes that
// WithBuffer allows, headers included, and goes on when a frame is read. It runs in a synctest
// bubble, where synctest.Wait returns once the writer is blocked.
func TestWriterBlocksAtLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 100
		w, r := connect(t, mem.WithBuffer(limit))
		frames := 0
		go func() {
			for w.WriteFrames(transport.Frame{make([]byte, 2)}) == nil {
				frames++
			}
		}()
		synctest.Wait()
		require.Equal(t, limit/10, frames)

		n, err := r.NextFrame()
		require.NoError(t, err)
		require.NoError(t, r.ReadBody(make([]byte, n)))
		synctest.Wait()
		require.Equal(t, limit/10+1, frames)
	})
}

func TestTinyBuffers(t *testing.T) {
	for _, size := range []int{-1, 0, 1, 7, 8, 9, 1000} {
		w, r := connect(t, mem.WithBuffer(size))
		sent := []byte("a frame that does not fit into the smaller ones")
		go w.WriteFrames(transport.Frame{sent[:5], nil, sent[5:]})
		n, err := r.NextFrame()
		require.NoError(t, err)
		got := make([]byte, n)
		require.NoError(t, r.ReadBody(got))
		require.Equal(t, sent, got)
	}
}

func TestWriteToClosedPeer(t *testing.T) {
	w, r := connect(t)
	require.NoError(t, r.Close())
	err := w.WriteFrames(transport.Frame{[]byte("x")})
	require.ErrorIs(t, err, syscall.EPIPE)
	require.ErrorContains(t, err, w.RemoteAddr())
}

// TestEndWithinHeader checks that NextFrame returns io.ErrUnexpectedEOF if the peer closes within a
// header, and again in a second call.
func TestEndWithinHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := connect(t, mem.WithBuffer(5))
		go w.WriteFrames(transport.Frame{{1}})
		synctest.Wait()
		require.NoError(t, w.Close())
		for range 2 {
			_, err := r.NextFrame()
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		}
	})
}

func TestEndWithinBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := connect(t, mem.WithBuffer(20))
		go w.WriteFrames(transport.Frame{make([]byte, 100)})
		synctest.Wait()
		require.NoError(t, w.Close())
		n, err := r.NextFrame()
		require.NoError(t, err)
		require.EqualValues(t, 100, n)
		for range 2 {
			require.ErrorIs(t, r.ReadBody(make([]byte, 50)), io.ErrUnexpectedEOF)
		}
	})
}

func TestDialWaitsForBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := mem.New(nil)
		l, err := tr.Listen(t.Context(), "")
		require.NoError(t, err)
		dialled := 0
		failed := make(chan error)
		go func() {
			for {
				c, err := tr.Dial(t.Context(), l.Addr())
				if err != nil {
					failed <- err
					return
				}
				defer c.Close()
				dialled++
			}
		}()
		synctest.Wait()
		require.Equal(t, 128, dialled)
		require.NoError(t, l.Close())
		require.ErrorIs(t, <-failed, syscall.ECONNREFUSED)
	})
}
