package mem_test

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// stream makes c a stream and returns it. An error ends the test.
func stream(t *testing.T, c transport.Conn) transport.Stream {
	t.Helper()
	s, err := c.(transport.Multiplexer).Stream()
	require.NoError(t, err)
	return s
}

// multiplex makes both ends of a connection sessions and returns them. They are closed when the
// test ends.
func multiplex(t *testing.T, dialled, accepted transport.Conn) (client, server transport.Session) {
	t.Helper()
	server, err := accepted.(transport.Multiplexer).Multiplex(transport.SessionConfig{MaxStreams: 10})
	require.NoError(t, err)
	client, err = dialled.(transport.Multiplexer).Multiplex(transport.SessionConfig{MaxStreams: 10, Client: true})
	require.NoError(t, err)
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// TestDeadlinesInBubble checks that a blocked read and a blocked write of a stream return a timeout
// exactly at their deadlines. It runs in a synctest bubble, where time passes only while all
// goroutines are blocked.
func TestDeadlinesInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := connect(t, mem.WithBuffer(10))
		s := stream(t, d)
		began := time.Now()
		require.NoError(t, s.SetReadDeadline(began.Add(time.Hour)))
		require.NoError(t, s.SetWriteDeadline(began.Add(2*time.Hour)))
		_, err := s.Read(make([]byte, 1))
		require.True(t, err.(net.Error).Timeout())
		require.Equal(t, time.Hour, time.Since(began))
		n, err := s.Write(make([]byte, 11))
		require.True(t, err.(net.Error).Timeout())
		require.Equal(t, 10, n)
		require.Equal(t, 2*time.Hour, time.Since(began))
	})
}

// TestDeadlineDuringRead checks that a blocked read ends at a deadline that is set while it is
// blocked, and not at the earlier one that it replaces.
func TestDeadlineDuringRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := connect(t)
		s := stream(t, d)
		require.NoError(t, s.SetReadDeadline(time.Now().Add(time.Minute)))
		began := time.Now()
		over := make(chan time.Duration, 1)
		go func() {
			s.Read(make([]byte, 1))
			over <- time.Since(began)
		}()
		synctest.Wait()
		require.NoError(t, s.SetReadDeadline(time.Now().Add(time.Hour)))
		require.Equal(t, time.Hour, <-over)
	})
}

func TestSessionInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dialled, accepted := connect(t, mem.WithBuffer(100))
		client, server := multiplex(t, dialled, accepted)
		began := time.Now()
		for range 3 {
			o, err := client.Open()
			require.NoError(t, err)
			a, err := server.Accept(t.Context())
			require.NoError(t, err)
			go func() {
				io.Copy(a, a)
				a.CloseWrite()
			}()
			go func() {
				o.Write(make([]byte, 1<<20))
				o.CloseWrite()
			}()
			n, err := io.Copy(io.Discard, o)
			require.NoError(t, err)
			require.EqualValues(t, 1<<20, n)
		}
		require.Zero(t, time.Since(began), "nothing waits for a timer")
		require.NoError(t, dialled.Close())
		synctest.Wait()
		require.Equal(t, transport.ErrClosed, client.Err())
		require.Equal(t, io.EOF, server.Err())
	})
}
