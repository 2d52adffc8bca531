package mux_test

import (
	"encoding/binary"
	"io"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/mux"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// The end of a stream is sent before that of its session, even if the session is closed while
// CloseWrite still waits to send it.
func TestStreamEndIsSentBeforeGoAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, peer := rawSession(t, transport.SessionConfig{MaxStreams: 1})
		_, err := peer.Write(message(kindData, flagSyn, 1, 0, ""))
		require.NoError(t, err)
		st, err := s.Accept(t.Context())
		require.NoError(t, err)
		release := mux.HoldWriting(st)
		require.NoError(t, st.CloseWrite()) // returns after its timeout
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		synctest.Wait()
		release()
		said, err := io.ReadAll(peer)
		require.NoError(t, err)
		require.NoError(t, <-closed)
		const header = 12
		require.Len(t, said, 3*header)
		require.Equal(t, uint16(flagAck), binary.BigEndian.Uint16(said[2:]))
		require.Equal(t, uint16(flagFin), binary.BigEndian.Uint16(said[header+2:]))
		require.EqualValues(t, kindGoAway, said[2*header+1])
	})
}
