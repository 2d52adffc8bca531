package ringsession_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/ringsession"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// pollers returns the two ends of a new stream as transport.Pollers.
func pollers(t *testing.T) (writer, reader transport.Poller) {
	client, server := sessions(t, 1)
	one, other := open(t, client, server)
	return one.(transport.Poller), other.(transport.Poller)
}

// startWait calls p.Wait on another goroutine, and returns a channel that has a value once Wait has
// returned.
func startWait(p transport.Poller) <-chan bool {
	return testwait.Start(func() bool {
		p.Wait()
		return true
	})
}

func TestTryReadAndTryWriteDoNotBlock(t *testing.T) {
	writer, reader := pollers(t)
	p := make([]byte, 4<<20)
	n, err := reader.TryRead(p)
	require.NoError(t, err)
	require.Zero(t, n)

	want := random(4 << 20)
	n, err = writer.TryWrite(want[:10], nil, want[10:])
	require.NoError(t, err)
	require.Equal(t, ringsession.UnchargedBytes, n, "the ring is full")
	k, err := writer.TryWrite(want[n:])
	require.NoError(t, err)
	require.Zero(t, k)

	got := 0
	for got < n {
		k, err := reader.TryRead(p[got:])
		require.NoError(t, err)
		require.Positive(t, k)
		got += k
	}
	require.True(t, bytes.Equal(want[:n], p[:n]))
	require.NoError(t, writer.CloseWrite())
	_, err = reader.TryRead(p)
	require.ErrorIs(t, err, io.EOF)
	_, err = writer.TryWrite(p)
	require.ErrorIs(t, err, transport.ErrClosed)
}

func TestWaitReturnsWhenReadable(t *testing.T) {
	writer, reader := pollers(t)
	done := startWait(reader)
	_, err := writer.TryWrite([]byte("x"))
	require.NoError(t, err)
	testwait.Finish(t, done)
	reader.Wait() // the byte is still unread
	_, err = reader.TryRead(make([]byte, 1))
	require.NoError(t, err)

	done = startWait(reader)
	reader.Wake()
	testwait.Finish(t, done)

	done = startWait(reader)
	require.NoError(t, writer.CloseWrite())
	testwait.Finish(t, done)
}

// PollReadable finds bytes that arrive. After that Wait is not woken until Arm is called.
func TestPollReadable(t *testing.T) {
	writer, reader := pollers(t)
	require.False(t, reader.PollReadable(false))
	_, err := writer.TryWrite([]byte("one"))
	require.NoError(t, err)
	require.True(t, reader.PollReadable(false))
	p := make([]byte, 8)
	n, err := reader.TryRead(p)
	require.NoError(t, err)
	require.Equal(t, "one", string(p[:n]))

	done := startWait(reader)
	_, err = writer.TryWrite([]byte("two"))
	require.NoError(t, err)
	reader.Arm()
	testwait.Finish(t, done)
	require.True(t, reader.PollReadable(false))
}

func TestWaitReturnsAtTheEnd(t *testing.T) {
	for name, end := range map[string]func(writer, reader transport.Poller){
		"closed here":          func(_, reader transport.Poller) { reader.Close() },
		"closed by the peer":   func(writer, _ transport.Poller) { writer.Close() },
		"closed while polling": func(writer, reader transport.Poller) { reader.PollReadable(false); writer.Close() },
		"closed after a read": func(writer, reader transport.Poller) {
			_, _ = writer.TryWrite([]byte("x"))
			reader.PollReadable(false)
			_, _ = reader.TryRead(make([]byte, 1))
			reader.Arm()
			writer.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			writer, reader := pollers(t)
			done := startWait(reader)
			end(writer, reader)
			testwait.Finish(t, done)
			require.True(t, reader.PollReadable(false))
			_, err := reader.TryRead(make([]byte, 1))
			require.Error(t, err)
		})
	}
}
