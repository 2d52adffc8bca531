package shm

import (
	"bytes"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// gathering is a stream that writes from many places.
type gathering interface {
	transport.Stream
	transport.Gatherer
}

// streams returns the two ends of a connection as streams.
func streams(t *testing.T, tr *Transport) (one, other gathering) {
	t.Helper()
	dialled, accepted := connect(t, tr)
	a, err := dialled.Stream()
	require.NoError(t, err)
	b, err := accepted.Stream()
	require.NoError(t, err)
	return a.(gathering), b.(gathering)
}

// cut cuts p into pieces of all sizes, none at all among them.
func cut(p []byte) (pieces net.Buffers) {
	for size := 0; len(p) > 0; size = (size*5 + 1) % 300_007 {
		n := min(size, len(p))
		pieces = append(pieces, p[:n])
		p = p[n:]
	}
	return pieces
}

func TestGather(t *testing.T) {
	both(t, func(t *testing.T, tr *Transport) {
		one, other := streams(t, tr)
		want := random(1, 3*inboxSize+5)
		pieces := cut(want)
		given := slices.Clone(pieces)
		all := pieces
		written := patience.Start(func() error {
			n, err := one.WriteBuffers(&pieces)
			if err == nil && n != int64(len(want)) {
				err = io.ErrShortWrite
			}
			return err
		})
		got := make([]byte, len(want))
		_, err := io.ReadFull(other, got)
		require.NoError(t, err)
		require.NoError(t, patience.Finish(t, written))
		require.True(t, bytes.Equal(want, got))
		require.Empty(t, pieces)
		require.Equal(t, make(net.Buffers, len(all)), all, "nothing is held on to")
		require.True(t, bytes.Equal(want, slices.Concat(given...)), "the bytes are as they were")
	})
}

// What a deadline left of the pieces is just what the peer does not get.
func TestGatherGoesOnAfterADeadline(t *testing.T) {
	both(t, func(t *testing.T, tr *Transport) {
		one, other := streams(t, tr)
		want := random(2, 2*inboxSize)
		pieces := cut(want)
		var n int64
		written := patience.Start(func() (err error) {
			n, err = one.WriteBuffers(&pieces)
			return err
		})
		first := make([]byte, 10)
		_, err := io.ReadFull(other, first)
		require.NoError(t, err)
		require.NoError(t, one.SetWriteDeadline(past))
		require.ErrorIs(t, patience.Finish(t, written), os.ErrDeadlineExceeded)
		require.True(t, bytes.Equal(want[n:], slices.Concat(pieces...)))
		k, err := one.WriteBuffers(&pieces)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Zero(t, k)

		require.NoError(t, one.SetWriteDeadline(time.Time{}))
		written = patience.Start(func() error {
			_, err := one.WriteBuffers(&pieces)
			return err
		})
		rest := make([]byte, len(want)-len(first))
		_, err = io.ReadFull(other, rest)
		require.NoError(t, err)
		require.NoError(t, patience.Finish(t, written))
		require.True(t, bytes.Equal(want, append(first, rest...)))
	})
}
