package cma_test

import (
	"encoding/binary"
	"log/slog"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// receiving makes a new end receive memory of the test, of which the offer holds as
// long as the word is 5.
func receiving(t *testing.T, f *cma.Factory, word, memory []byte) (dst []byte, err <-chan error) {
	t.Helper()
	ch, far := endOf(t, f)
	dst = make([]byte, len(memory))
	done, err := result()
	ch.Recv(1, device.Bytes(dst), done)
	write(t, far, offer(os.Getpid(), 1, address(word), 5, address(memory), uint64(len(memory))))
	return dst, err
}

// endOf makes an end of the native dialect.
func endOf(t *testing.T, f *cma.Factory) (channel.Channel, transport.Conn) {
	t.Helper()
	near, far := connections(t, true)
	ch, err := f.New(t.Context(), channel.Link{
		Native: true, Conns: near, Peer: "worker1", Broken: func(error) {}, Logger: slog.New(slog.DiscardHandler),
	}, channel.RoleConnect)
	require.NoError(t, err)
	t.Cleanup(func() { ch.Close(nil) })
	return ch, far[0]
}

// Peers whose memory never arrives keep nobody but the channels to them waiting,
// however many they are.
func TestMemoryThatNeverArrives(t *testing.T) {
	const size = 8 << 20
	f := cma.New(cma.Options{Workers: 2})
	word, src := cma.Mapped(t, 8), cma.Mapped(t, size)
	binary.NativeEndian.PutUint64(word, 5)
	copy(src, "arrives")
	withheld := cma.Withhold(t, size)
	defer withheld.Release() // before the ends close, which wait for it
	var waiting []<-chan error
	for range 4 {
		_, err := receiving(t, f, word, withheld.Memory)
		waiting = append(waiting, err)
		dst, err := receiving(t, f, word, src) // while that one takes what it can get
		require.NoError(t, <-err)
		require.Equal(t, "arrives", string(dst[:7]))
	}
	for _, err := range waiting {
		require.Empty(t, err)
	}
	withheld.Release()
	for _, err := range waiting {
		require.NoError(t, <-err)
	}
}
