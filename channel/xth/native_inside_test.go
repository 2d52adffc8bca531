package xth

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

func openNative(t *testing.T, conns ...transport.Conn) *nativeEnd {
	t.Helper()
	ch, err := New().New(t.Context(), channel.Link{Native: true, Conns: conns, Peer: "peer", Broken: func(error) {}}, channel.RoleConnect)
	require.NoError(t, err)
	t.Cleanup(func() { ch.Close(nil) })
	return ch.(*nativeEnd)
}

// Nothing stays behind of tensors that were copied, or given up by either end
// at whatever time, in the ends and in the process-wide table.
func TestNativeKeepsNothing(t *testing.T) {
	near, far := connect(t, connections)
	from, to := openNative(t, near...), openNative(t, far...)
	require.Equal(t, 2, openRoutes(near[0]), "one for each direction")
	buf := func() device.Buffer { return device.Bytes(make([]byte, 100)) }
	done := make(chan error, 8)
	wait := func(err error) { done <- err }
	for id := uint64(0); id < 100; id += 4 {
		from.Send(id, buf(), wait) // is copied
		to.Recv(id, buf(), wait)
		from.Send(id+1, buf(), wait) // has no taker
		from.Abort(id+1, io.EOF)
		to.Abort(id+2, io.EOF) // before anything is known of it
		from.Send(id+2, buf(), wait)
		from.Abort(id+2, io.EOF)
		to.Recv(id+3, buf(), wait) // never comes
		to.Abort(id+3, io.EOF)
		for range 5 {
			<-done
		}
	}
	from.Send(100, buf(), wait) // all words before this were heard
	to.Recv(100, buf(), wait)
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	for _, e := range []*nativeEnd{from, to} {
		e.mu.Lock()
		require.Empty(t, e.sends)
		require.Empty(t, e.recvs)
		require.Empty(t, e.offers)
		require.Zero(t, e.words.Len()+e.pairs.Len())
		e.mu.Unlock()
	}
	require.Empty(t, from.here.offers)
	require.NoError(t, from.Close(nil))
	require.NoError(t, to.Close(nil))
	require.Zero(t, openRoutes(near[0]))
}

// Whoever wants a copy to end waits for a chunk, not for a tensor, and only a
// receiver that gave up itself, or lost its peer, is through with it.
func TestNativeCopyingEndsWithinAChunk(t *testing.T) {
	for _, c := range []struct {
		name   string
		enough func(e *nativeEnd, r *receiving)
		want   error // nil: it waits
	}{
		{"receiver aborts", func(e *nativeEnd, r *receiving) { e.Abort(7, io.ErrNoProgress) }, io.ErrNoProgress},
		{"sender withdraws", func(_ *nativeEnd, r *receiving) { r.offer.stop = true }, nil},
		{"receiver closes", func(e *nativeEnd, _ *receiving) { e.life.Fail(io.ErrNoProgress) }, io.ErrNoProgress},
	} {
		t.Run(c.name, func(t *testing.T) {
			near, _ := connect(t, connections)
			e := openNative(t, near...)
			src, dst := bytes.Repeat([]byte{1}, 3*chunk), make([]byte, 3*chunk)
			result := make(chan error, 1)
			e.Recv(7, device.Bytes(dst), func(err error) { result <- err })
			e.mu.Lock()
			r := e.recvs[7]
			r.offer, r.copying = newOffer(), true
			r.offer.renew(device.Bytes(src))
			o := r.offer
			e.mu.Unlock()

			c.enough(e, r)
			require.False(t, e.take(r))
			require.Equal(t, src[:chunk], dst[:chunk], "a chunk was under way")
			require.Equal(t, make([]byte, 2*chunk), dst[chunk:])
			require.False(t, o.copied())
			if c.want == nil {
				require.Empty(t, result)
				e.Abort(7, io.EOF)
				c.want = io.EOF
			}
			require.ErrorIs(t, <-result, c.want)
			require.NoError(t, e.Close(nil))
			require.Empty(t, result)
		})
	}
}
