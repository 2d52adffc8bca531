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

// openNative creates one end over conns, and returns the errors passed to Broken.
func openNative(t *testing.T, conns ...transport.Conn) *nativeEnd {
	t.Helper()
	ch, err := New().New(t.Context(), channel.Link{Native: true, Conns: conns, Peer: "peer", Broken: func(error) {}}, channel.RoleConnect)
	require.NoError(t, err)
	t.Cleanup(func() { ch.Close(nil) })
	return ch.(*nativeEnd)
}

// Neither the ends nor the global table retain anything of tensors that were copied, or aborted by
// either end at any time.
func TestNativeKeepsNothing(t *testing.T) {
	near, far := connect(t, connections)
	from, to := openNative(t, near...), openNative(t, far...)
	require.Equal(t, 2, openRoutes(near[0]), "one for each direction")
	buf := func() device.Buffer { return device.Bytes(make([]byte, 100)) }
	done := make(chan error, 8)
	wait := func(err error) { done <- err }
	for id := uint64(0); id < 100; id += 4 {
		from.Send(id, buf(), wait) // copied
		to.Recv(id, buf(), wait)
		from.Send(id+1, buf(), wait) // has no Recv
		from.Abort(id+1, io.EOF)
		to.Abort(id+2, io.EOF) // before it is announced
		from.Send(id+2, buf(), wait)
		from.Abort(id+2, io.EOF)
		to.Recv(id+3, buf(), wait) // has no Send
		to.Abort(id+3, io.EOF)
		for range 5 {
			<-done
		}
	}
	from.Send(100, buf(), wait) // all earlier announcements have been handled
	to.Recv(100, buf(), wait)
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	for _, e := range []*nativeEnd{from, to} {
		e.mu.Lock()
		require.Empty(t, e.sends)
		require.Empty(t, e.recvs)
		require.Empty(t, e.descriptions)
		require.Zero(t, e.outgoing.Len()+e.copyQueue.Len())
		e.mu.Unlock()
	}
	require.Empty(t, from.here.descriptions)
	require.NoError(t, from.Close(nil))
	require.NoError(t, to.Close(nil))
	require.Zero(t, openRoutes(near[0]))
}

// A copy stops within a chunk. Only a receiver that aborted, or lost its peer, is then over.
func TestNativeCopyingEndsWithinAChunk(t *testing.T) {
	for _, c := range []struct {
		name   string
		enough func(e *nativeEnd, r *recvOp)
		want   error // nil if it is not over
	}{
		{"receiver aborts", func(e *nativeEnd, r *recvOp) { e.Abort(7, io.ErrNoProgress) }, io.ErrNoProgress},
		{"sender withdraws", func(_ *nativeEnd, r *recvOp) { r.description.stop = true }, nil},
		{"receiver closes", func(e *nativeEnd, _ *recvOp) { e.lifecycle.Fail(io.ErrNoProgress) }, io.ErrNoProgress},
	} {
		t.Run(c.name, func(t *testing.T) {
			near, _ := connect(t, connections)
			e := openNative(t, near...)
			src, dst := bytes.Repeat([]byte{1}, 3*chunkSize), make([]byte, 3*chunkSize)
			result := make(chan error, 1)
			e.Recv(7, device.Bytes(dst), func(err error) { result <- err })
			e.mu.Lock()
			r := e.recvs[7]
			r.description, r.copying = newDescription(), true
			r.description.reset(device.Bytes(src))
			o := r.description
			e.mu.Unlock()

			c.enough(e, r)
			require.False(t, e.copyTensor(r))
			require.Equal(t, src[:chunkSize], dst[:chunkSize], "a chunk was under way")
			require.Equal(t, make([]byte, 2*chunkSize), dst[chunkSize:])
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
