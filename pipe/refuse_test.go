package pipe_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// A peer that is refused hears why, and can then keep its connection, and the place of
// its handshake, for no longer than a handshake may take.
func TestRefusedPeerStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.NewNetwork()
		only := pipe.TransportEntry{Name: "mem", Transport: mem.New(network)}
		c, err := pipe.New(pipe.Options{Transports: []pipe.TransportEntry{only}, Limits: pipe.Limits{HandshakesInProgress: 1}})
		require.NoError(t, err)
		defer c.Close()
		l, err := c.Listen(t.Context(), "mem://here")
		require.NoError(t, err)
		stays, err := mem.New(network).Dial(t.Context(), "here")
		require.NoError(t, err)
		defer stays.Close()

		hello := wire.SpontaneousConnection{ContextName: "stays"}
		brochure := wire.Brochure{TransportDomainDescriptors: map[string]string{}}
		brochure.Mark(wire.Marker{MaxVersion: wire.VersionNative})
		require.NoError(t, stays.WriteFrames(transport.Frame{hello.Append(nil)}, transport.Frame{brochure.Append(nil)}))
		n, err := stays.NextFrame()
		require.NoError(t, err)
		text := make([]byte, n)
		require.NoError(t, stays.ReadBody(text))
		answer, err := wire.DecodeBrochureAnswer(text, wire.Limits{})
		require.NoError(t, err)
		refusal, refused := answer.Refusal()
		require.True(t, refused)
		require.Equal(t, wire.RefusedByTransport, refusal.Kind)
		require.Contains(t, refusal.Text, "transport mem: the peer does not offer it")
		require.EqualValues(t, 1, c.Stats().HandshakesFailed)

		_, err = c.Dial(t.Context(), l.URLs()[0])
		require.Error(t, err, "the place is taken")
		<-time.NewTimer(10 * time.Second).C
		synctest.Wait()
		require.Error(t, stays.WriteFrames(transport.Frame{}))
		_, err = c.Dial(t.Context(), l.URLs()[0])
		require.NoError(t, err)
	})
}
