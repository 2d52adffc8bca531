package cma_test

import (
	"encoding/binary"
	"encoding/hex"
	"io"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// recorded is a connection that keeps the frames written to it.
type recorded struct {
	transport.Conn
	mu     sync.Mutex
	frames [][]byte
}

func (r *recorded) WriteFrames(frames ...transport.Frame) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range frames {
		var text []byte
		for _, part := range f {
			text = append(text, part...)
		}
		r.frames = append(r.frames, text)
	}
	return r.Conn.WriteFrames(frames...)
}

// written returns the recorded frames in hexadecimal. In a description the text "word" replaces the
// address and the value of the validity word; the test fails if one of these is 0.
func (r *recorded) written(t *testing.T) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]string, len(r.frames))
	for i, f := range r.frames {
		out[i] = hex.EncodeToString(f)
		if len(f) > 16 {
			require.NotZero(t, binary.LittleEndian.Uint64(f[16:]))
			require.NotZero(t, binary.LittleEndian.Uint64(f[24:]))
			out[i] = out[i][:32] + " word " + out[i][64:]
		}
	}
	return out
}

// Two ends of the native dialect exchange exactly these frames for two tensors and an aborted one.
// The frames must not change, because other versions of the library read them.
func TestNativeFrames(t *testing.T) {
	near, far := connections(t, true)
	one, two := &recorded{Conn: near[0]}, &recorded{Conn: far[0]}
	from, _ := open(t, []transport.Conn{one})
	to, _ := open(t, []transport.Conn{two})
	data := make([]byte, 300)
	first, second := data[:200], data[250:]
	buf := func(n int) device.Buffer { return device.Bytes(make([]byte, n)) }
	sent, sendErr := result()
	received, recvErr := result()
	to.Recv(0x0102, buf(250), received)
	from.Send(0x0102, device.Host(first, second), sent)
	require.NoError(t, <-sendErr)
	require.NoError(t, <-recvErr)
	from.Send(3, device.Bytes(first), sent)
	from.Abort(3, io.ErrNoProgress)
	require.Equal(t, io.ErrNoProgress, <-sendErr)
	from.Recv(4, buf(50), received)
	to.Send(4, device.Bytes(second), sent)
	require.NoError(t, <-sendErr)
	require.NoError(t, <-recvErr)

	le := func(numbers ...uint64) string { return hex.EncodeToString(offer(0, 0, numbers...)[16:]) }
	me := hex.EncodeToString(binary.LittleEndian.AppendUint32(nil, uint32(os.Getpid())))
	require.Equal(t, []string{
		"01000000" + me + "0201000000000000 word " + le(address(first), 200, address(second), 50),
		"01000000" + me + "0300000000000000 word " + le(address(first), 200),
		"02000000" + "00000000" + "0300000000000000",
		"03000000" + "00000000" + "0400000000000000",
	}, one.written(t))
	require.Equal(t, []string{
		"03000000" + "00000000" + "0201000000000000",
		"01000000" + me + "0400000000000000 word " + le(address(second), 50),
	}, two.written(t))
}
