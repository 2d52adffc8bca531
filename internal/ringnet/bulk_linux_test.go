package ringnet_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/ringnet"
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
			n, err := st.(transport.Poller).TryWrite(make([]byte, 4<<20))
			require.NoError(t, err)
			require.Equal(t, room, n)
		}
		require.NoError(t, accepted.Close())
		return opened
	}
	open(client.Open, ringnet.UnpaidBytes) // carries messages
	small := open(client.Open, ringnet.SmallBytes)
	large := open(client.OpenBulk, ringnet.UnpaidBytes)
	require.NoError(t, small.Close())
	require.NoError(t, large.Close())
	for range 4 {
		require.NoError(t, open(client.OpenBulk, ringnet.UnpaidBytes).Close())
		require.NoError(t, open(client.Open, ringnet.SmallBytes).Close())
	}
}
