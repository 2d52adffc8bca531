package mux_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// TestFlushedBytesSurviveClose checks that everything that was written before Flush can be read at
// the other end after Close.
func TestFlushedBytesSurviveClose(t *testing.T) {
	for range 20 {
		client, server := sessions(t, transport.SessionConfig{MaxStreams: 1})
		opened, accepted := streams(t, client, server)
		_, err := opened.Write(make([]byte, 200_000))
		require.NoError(t, err)
		require.NoError(t, opened.Close())
		require.NoError(t, client.Flush(t.Context()))
		require.NoError(t, client.Close())
		n, err := io.Copy(io.Discard, accepted)
		require.NoError(t, err)
		require.EqualValues(t, 200_000, n)
	}
}

// TestFlushWaitsForItsPing checks that Flush returns only when the peer has answered the ping of
// this call, when its context ends, or when the session ends.
func TestFlushWaitsForItsPing(t *testing.T) {
	session, peer := rawSession(t, transport.SessionConfig{MaxStreams: 1})
	flush := func(ctx context.Context) <-chan error {
		return testwait.Start(func() error { return session.Flush(ctx) })
	}
	readPing := func() uint32 {
		var m [12]byte
		_, err := io.ReadFull(peer, m[:])
		require.NoError(t, err)
		require.EqualValues(t, kindPing, m[1])
		return binary.BigEndian.Uint32(m[8:])
	}
	answer := func(number uint32) {
		_, err := peer.Write(message(kindPing, flagAck, 0, number, ""))
		require.NoError(t, err)
	}
	cause := errors.New("the caller has given up")
	ctx, cancel := context.WithCancelCause(t.Context())
	late := flush(ctx)
	first := readPing()
	cancel(cause)
	require.ErrorIs(t, testwait.Finish(t, late), cause)

	flushed := flush(t.Context())
	second := readPing()
	for _, other := range []uint32{first, 0, second + 1} {
		answer(other)
	}
	answer(second)
	answer(second)
	require.NoError(t, testwait.Finish(t, flushed))

	ended := flush(t.Context())
	readPing()
	answer(second)
	require.NoError(t, peer.CloseWrite())
	require.ErrorIs(t, testwait.Finish(t, ended), io.EOF)
}
