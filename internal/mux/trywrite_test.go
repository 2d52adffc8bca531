package mux_test

import (
	"bytes"
	"io"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/mux"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// mustTryWrite calls TryWrite with the pieces p, checks that there is no error, and returns how
// many bytes were written.
func mustTryWrite(t *testing.T, s transport.Stream, p ...[]byte) int {
	t.Helper()
	n, err := s.TryWrite(p...)
	require.NoError(t, err)
	return n
}

// TryWrite writes no more bytes than the window and the queue permit. Bytes of a later Write follow
// its bytes.
func TestTryWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s, _ := sessionsOver(t, transport.SessionConfig{}, transport.SessionConfig{MaxStreams: 1})
		o, a := streams(t, c, s)
		data := make([]byte, 1<<20)
		for i := range data {
			data[i] = byte(i / 7)
		}
		n := mustTryWrite(t, o, data[:10], data[10:30], data[30:])
		for tries := 0; tries < 10; tries++ {
			synctest.Wait()
			n += mustTryWrite(t, o, data[n:])
		}
		require.Equal(t, 256<<10, n, "the window that everybody has")
		rest := make(chan error, 1)
		go func() { _, err := o.Write(data[n:]); rest <- err }()
		synctest.Wait()
		require.Zero(t, mustTryWrite(t, o, []byte("not in between")))
		got := make([]byte, len(data))
		_, err := io.ReadFull(a, got)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, got))
		require.NoError(t, <-rest)
	})
}

func TestTryWriteFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s, _ := sessionsOver(t, transport.SessionConfig{}, transport.SessionConfig{MaxStreams: 2})
		o, a := streams(t, c, s)
		require.NoError(t, a.Close())
		synctest.Wait()
		_, err := o.TryWrite([]byte("nobody reads it"))
		require.ErrorIs(t, err, syscall.ECONNRESET)
		o, _ = streams(t, c, s)
		require.NoError(t, o.CloseWrite())
		_, err = o.TryWrite([]byte("too late"))
		require.ErrorIs(t, err, transport.ErrClosed)
		_, err = o.Write(nil)
		require.ErrorIs(t, err, transport.ErrClosed)
		o, _ = streams(t, c, s)
		require.NoError(t, s.Close())
		<-c.Done()
		_, err = o.TryWrite([]byte("nobody is there"))
		var ended *mux.EndError
		require.ErrorAs(t, err, &ended)
	})
}

// A Write without credit observes deadlines that were set before or during the call. Later writes
// succeed without a deadline.
func TestWriteDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s, _ := sessionsOver(t, transport.SessionConfig{}, transport.SessionConfig{MaxStreams: 1})
		o, a := streams(t, c, s)
		data := make([]byte, 300<<10)
		begun := time.Now()
		require.NoError(t, o.SetWriteDeadline(begun.Add(time.Second)))
		n, err := o.Write(data)
		require.ErrorContains(t, err, "i/o timeout")
		require.Equal(t, 256<<10, n)
		require.Equal(t, time.Second, time.Since(begun))
		require.NoError(t, o.SetWriteDeadline(begun.Add(time.Hour)))
		written := make(chan error, 1)
		go func() { _, err := o.Write(data[n:]); written <- err }()
		synctest.Wait()
		require.NoError(t, o.SetWriteDeadline(time.Now().Add(time.Second)))
		require.ErrorContains(t, <-written, "i/o timeout")
		require.Equal(t, 2*time.Second, time.Since(begun))
		require.NoError(t, o.SetWriteDeadline(time.Time{}))
		go func() { _, err := o.Write(data[n:]); written <- err }()
		_, err = io.ReadFull(a, make([]byte, len(data)))
		require.NoError(t, err)
		require.NoError(t, <-written)
	})
}

// recorder records the sizes of the writes to its socket.
type recorder struct {
	socket
	mu     sync.Mutex
	writes []int
}

func (r *recorder) TryWrite(pieces ...[]byte) (int, error) {
	p := bytes.Join(pieces, nil)
	r.mu.Lock()
	r.writes = append(r.writes, len(p))
	r.mu.Unlock()
	return r.Write(p)
}

// TestWritesAtOnce checks that a part of 64 KiB and its description are written to the connection at
// once, so that the peer is not woken for an incomplete one, and larger ones too if nothing else is being written.
func TestWritesAtOnce(t *testing.T) {
	d, a := tcp(t)
	r := &recorder{socket: d}
	c, err := mux.New(r, transport.SessionConfig{Client: true})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	s, err := mux.New(a, transport.SessionConfig{MaxStreams: 1})
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	o, accepted := streams(t, c, s)
	_, err = o.Write([]byte{0}) // TryWrite does not wait until the stream is announced
	require.NoError(t, err)
	require.NoError(t, c.Flush(t.Context())) // nothing else is being written
	description, part := make([]byte, 500), make([]byte, 64<<10)
	n := mustTryWrite(t, o, description, part[:1000], nil, part[1000:])
	require.Equal(t, len(description)+len(part), n)
	_, err = io.ReadFull(accepted, make([]byte, 1+n))
	require.NoError(t, err)
	require.NoError(t, c.Flush(t.Context()))
	large := mustTryWrite(t, o, make([]byte, 100_000), make([]byte, 30_000))
	require.Equal(t, 130_000, large)
	_, err = io.ReadFull(accepted, make([]byte, large))
	require.NoError(t, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Contains(t, r.writes, 12+n, "a header and the bytes")
	require.Contains(t, r.writes, 12+large, "nothing else is being written, so the message may be longer than 72 KiB")
}
