package xth_test

import (
	"encoding/hex"
	"io"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// recorded is a connection that keeps the frames written to it, in hexadecimal.
type recorded struct {
	transport.Conn
	mu     sync.Mutex
	frames []string
}

func (r *recorded) WriteFrames(frames ...transport.Frame) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range frames {
		text := ""
		for _, part := range f {
			text += hex.EncodeToString(part)
		}
		r.frames = append(r.frames, text)
	}
	return r.Conn.WriteFrames(frames...)
}

// written returns the recorded frames in hexadecimal. The text "address" replaces an address that
// is not 0.
func (r *recorded) written() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]string, len(r.frames))
	for i, f := range r.frames {
		out[i] = f
		if len(f) == 32 && f[16:] != "0000000000000000" {
			out[i] = f[:16] + " address"
		}
	}
	return out
}

// Two ends of the native dialect exchange exactly these frames for three tensors and an aborted
// one. The frames must not change, because other versions of the library read them.
func TestNativeFrames(t *testing.T) {
	near, far := connections(t)
	var all []*recorded
	for _, conns := range [][]transport.Conn{near, far} {
		for i := range conns {
			r := &recorded{Conn: conns[i]}
			all, conns[i] = append(all, r), r
		}
	}
	from, _ := openNative(t, near)
	to, _ := openNative(t, far)
	buf := func() device.Buffer { return device.Bytes(make([]byte, 10)) }
	sent, sendErr := result()
	received, recvErr := result()
	to.Recv(0x0102, buf(), received)
	from.Send(0x0102, buf(), sent)
	require.NoError(t, <-sendErr)
	require.NoError(t, <-recvErr)
	from.Send(3, buf(), sent)
	from.Abort(3, io.ErrNoProgress)
	require.Equal(t, io.ErrNoProgress, <-sendErr)
	from.Send(1<<63-1, buf(), sent)
	to.Recv(1<<63-1, buf(), received)
	require.NoError(t, <-sendErr)
	require.NoError(t, <-recvErr)
	from.Recv(4, buf(), received)
	to.Send(4, buf(), sent)
	require.NoError(t, <-sendErr)
	require.NoError(t, <-recvErr)

	require.Equal(t, []string{
		"0201000000000000 address", "0300000000000000 address", "03000000000000000000000000000000", "ffffffffffffff7f address",
	}, all[0].written())
	require.Equal(t, []string{"0400000000000000"}, all[1].written())
	require.Equal(t, []string{"0400000000000000 address"}, all[2].written())
	require.Equal(t, []string{"0201000000000000", "ffffffffffffff7f"}, all[3].written())
}
