package ringnet_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/internal/ringnet"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

func polled(t *testing.T) (writer, reader transport.Poller) {
	client, server := sessions(t, 1)
	one, other := open(t, client, server)
	return one.(transport.Poller), other.(transport.Poller)
}

// awaiting starts Await; what it returns is done when that returns.
func awaiting(p transport.Poller) <-chan bool {
	return patience.Start(func() bool {
		p.Await()
		return true
	})
}

func TestTriesDoNotWait(t *testing.T) {
	writer, reader := polled(t)
	p := make([]byte, 4<<20)
	n, err := reader.TryRead(p)
	require.NoError(t, err)
	require.Zero(t, n)

	want := random(4 << 20)
	n, err = writer.TryWrite(want[:10], nil, want[10:])
	require.NoError(t, err)
	require.Equal(t, ringnet.UnpaidBytes, n, "what the ring holds")
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

func TestAwaitHearsWhatComes(t *testing.T) {
	writer, reader := polled(t)
	done := awaiting(reader)
	_, err := writer.TryWrite([]byte("x"))
	require.NoError(t, err)
	patience.Finish(t, done)
	reader.Await() // it is still there
	_, err = reader.TryRead(make([]byte, 1))
	require.NoError(t, err)

	done = awaiting(reader)
	reader.Wake()
	patience.Finish(t, done)

	done = awaiting(reader)
	require.NoError(t, writer.CloseWrite())
	patience.Finish(t, done)
}

// Whoever looks finds what comes, and Await hears nothing until Mind.
func TestLookFinds(t *testing.T) {
	writer, reader := polled(t)
	require.False(t, reader.Look())
	_, err := writer.TryWrite([]byte("one"))
	require.NoError(t, err)
	require.True(t, reader.Look())
	p := make([]byte, 8)
	n, err := reader.TryRead(p)
	require.NoError(t, err)
	require.Equal(t, "one", string(p[:n]))

	done := awaiting(reader)
	_, err = writer.TryWrite([]byte("two"))
	require.NoError(t, err)
	reader.Mind()
	patience.Finish(t, done)
	require.True(t, reader.Look())
}

func TestPollersHearOfTheEnd(t *testing.T) {
	for name, end := range map[string]func(writer, reader transport.Poller){
		"of the stream here":   func(_, reader transport.Poller) { reader.Close() },
		"of the stream there":  func(writer, _ transport.Poller) { writer.Close() },
		"while somebody looks": func(writer, reader transport.Poller) { reader.Look(); writer.Close() },
		"after somebody had read": func(writer, reader transport.Poller) {
			_, _ = writer.TryWrite([]byte("x"))
			reader.Look()
			_, _ = reader.TryRead(make([]byte, 1))
			reader.Mind()
			writer.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			writer, reader := polled(t)
			done := awaiting(reader)
			end(writer, reader)
			patience.Finish(t, done)
			require.True(t, reader.Look())
			_, err := reader.TryRead(make([]byte, 1))
			require.Error(t, err)
		})
	}
}
