package shm

import (
	"context"
	"encoding/binary"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/transporttest"
)

// triggers is an Option that makes an end use no doorbells but triggers, as C++ ends do.
func triggers(t *Transport) { t.triggersOnly = true }

func TestParityOfTransport(t *testing.T) {
	transporttest.Run(t, backend("shm"))
}

func TestConformanceWithTokens(t *testing.T) {
	transporttest.Run(t, backend("shm_tokens", triggers))
}

func TestConformanceWithoutSpin(t *testing.T) {
	short.Skip(t, "the conformance suite once more")
	transporttest.Run(t, backend("shm_still", WithSpin(0)))
}

func TestConformanceWithBusyPolling(t *testing.T) {
	transporttest.Run(t, backend("shm_busy", WithBusyPolling()))
}

func TestConformanceWithTokensAndBusyPolling(t *testing.T) {
	short.Skip(t, "the conformance suite once more")
	b := backend("shm_busy_tokens", triggers, WithBusyPolling())
	// Each turn of a goroutine waits for polls, after which other processes run: tens of milliseconds on
	// a busy machine.
	b.Timeout = 5 * time.Minute
	transporttest.Run(t, b)
}

func backend(name string, opts ...Option) transporttest.Backend {
	return transporttest.Backend{
		Name:    name,
		New:     func(*testing.T) transport.Transport { return New(opts...) },
		DialRaw: func(addr string) (io.WriteCloser, error) { return dialRaw(addr, opts...) },
		AppendHeader: func(dst []byte, size int) []byte {
			return binary.LittleEndian.AppendUint32(dst, uint32(size))
		},
	}
}

// dialRaw dials addr and returns the connection as a stream, so that a test can write bytes to the
// ring without framing. The caller closes it.
func dialRaw(addr string, opts ...Option) (io.WriteCloser, error) {
	c, err := New(opts...).Dial(context.Background(), addr)
	if err != nil {
		return nil, err
	}
	return c.(transport.Multiplexer).Stream()
}

// connect returns the two ends of a new connection within tr, which are closed when the test ends.
func connect(t testing.TB, tr *Transport) (dialled, accepted *conn) {
	t.Helper()
	l, err := tr.Listen(t.Context(), "")
	require.NoError(t, err)
	defer l.Close()
	d, err := tr.Dial(t.Context(), l.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { d.Close() })
	a, err := l.Accept(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { a.Close() })
	return d.(*conn), a.(*conn)
}
