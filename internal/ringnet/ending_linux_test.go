package ringnet_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// An Open that has seen the session alive looks at memory which is gone by then.
func TestClosedSessionIsNotLookedAt(t *testing.T) {
	client, server := sessions(t, 3)
	open(t, client, server)
	require.NoError(t, client.Close())
	require.Zero(t, client.ResetByPeer())
}

func TestOpenAgainstClose(t *testing.T) {
	for range 50 {
		client, server := sessions(t, 3)
		open(t, client, server)
		opened := patience.Start(func() error {
			for {
				if _, err := client.Open(); err != nil {
					return err
				}
			}
		})
		require.NoError(t, client.Close())
		require.ErrorIs(t, patience.Finish(t, opened), transport.ErrClosed)
		require.NoError(t, server.Close())
	}
}
