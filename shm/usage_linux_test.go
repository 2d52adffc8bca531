package shm

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// open descriptors and mappings of shared memory in this process.
func inUse(t *testing.T) (descriptors, mappings int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return len(entries), strings.Count(string(maps), "memfd:tensorpipe_shm")
}

// An end keeps a socket, two rings of two mappings, and with a peer that takes
// tokens the peer's reactor; all of them together have one reactor, of two descriptors
// and one for its alarm.
func TestWhatConnectionsKeep(t *testing.T) {
	for _, k := range []struct {
		name     string
		opts     []Option
		mappings int
	}{
		{"doorbells", nil, 4},
		{"tokens", []Option{tokens}, 6},
	} {
		t.Run(k.name, func(t *testing.T) {
			const connections = 20
			tr := New(k.opts...)
			l, err := tr.Listen(t.Context(), "")
			require.NoError(t, err)
			defer l.Close()
			fds, maps := inUse(t)
			var ends []transport.Conn
			for range connections {
				dialled, err := tr.Dial(t.Context(), l.Addr())
				require.NoError(t, err)
				accepted, err := l.Accept(t.Context())
				require.NoError(t, err)
				ends = append(ends, dialled, accepted)
			}
			moreFDs, moreMaps := inUse(t)
			require.Equal(t, 2*connections+3, moreFDs-fds)
			require.Equal(t, 2*connections*k.mappings+2, moreMaps-maps)
			for _, c := range ends {
				require.NoError(t, c.Close())
			}
			endFDs, endMaps := inUse(t)
			require.Equal(t, fds, endFDs)
			require.Equal(t, maps, endMaps)
		})
	}
}
