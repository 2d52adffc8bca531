package ringnet_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Streams for large data have much room, others little; a place of either kind is
// used again for its kind only.
func TestRoomOfStreams(t *testing.T) {
	client, server := sessions(t, 6)
	open := func(f func() (transport.Stream, error), room int) transport.Stream {
		opened, err := f()
		require.NoError(t, err)
		accepted, err := server.Accept(t.Context())
		require.NoError(t, err)
		for _, st := range []transport.Stream{opened, accepted} {
			n, err := st.(transport.Poller).TryWrite(make([]byte, 1<<20))
			require.NoError(t, err)
			require.Equal(t, room, n)
		}
		require.NoError(t, accepted.Close())
		return opened
	}
	open(client.Open, 512<<10) // carries messages
	small := open(client.Open, 64<<10)
	large := open(client.OpenBulk, 512<<10)
	require.NoError(t, small.Close())
	require.NoError(t, large.Close())
	for range 4 {
		require.NoError(t, open(client.OpenBulk, 512<<10).Close())
		require.NoError(t, open(client.Open, 64<<10).Close())
	}
}
