package bench

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// BenchmarkSmallMessage measures the time and the allocations of small messages, in both dialects
// and with different contexts. One operation is a message with metadata, a payload and a tensor,
// written at one end and read at the other. Both ends are in this process.
func BenchmarkSmallMessage(b *testing.B) {
	long, cancel := context.WithCancel(context.Background())
	defer cancel()
	background := func() (context.Context, context.CancelFunc) { return context.Background(), func() {} }
	cancellable := func() (context.Context, context.CancelFunc) { return long, func() {} }
	deadline := func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(context.Background(), time.Minute)
	}
	for _, path := range pathSpecs() {
		b.Run("dialect="+string(path.Dialect)+"/ctx=background", func(b *testing.B) { smallMessages(b, path, background) })
		b.Run("dialect="+string(path.Dialect)+"/ctx=cancellable", func(b *testing.B) { smallMessages(b, path, cancellable) })
		b.Run("dialect="+string(path.Dialect)+"/ctx=fresh-deadline", func(b *testing.B) { smallMessages(b, path, deadline) })
	}
}

func smallMessages(b *testing.B, path Spec, fresh func() (context.Context, context.CancelFunc)) {
	opts, err := path.options("bench", nil)
	require.NoError(b, err)
	client, server := pipePair(b, opts)
	m := &pipe.Message{
		Metadata: make([]byte, 16),
		Payloads: []pipe.Payload{{Data: make([]byte, 32)}},
		Tensors:  []pipe.Tensor{{Buffer: device.Bytes(make([]byte, 64)), TargetDevice: device.CPU()}},
	}
	a := pipe.Allocation{Payloads: [][]byte{make([]byte, 32)}, Tensors: []device.Buffer{device.Bytes(make([]byte, 64))}}
	b.ReportAllocs()
	for b.Loop() {
		ctx, cancel := fresh()
		if err := client.Write(ctx, m); err != nil {
			b.Fatal(err)
		}
		in, err := server.Next(ctx)
		if err != nil {
			b.Fatal(err)
		}
		if err := in.Read(ctx, a); err != nil {
			b.Fatal(err)
		}
		in.Release()
		cancel()
	}
}

// pipePair returns both ends of a pipe over TCP within this process. The pipe is closed when the
// test ends.
func pipePair(t testing.TB, opts pipe.Options) (client, server *pipe.Pipe) {
	t.Helper()
	pc, err := pipe.New(opts)
	require.NoError(t, err)
	t.Cleanup(func() { pc.Close() })
	l, err := pc.Listen(t.Context(), "uv://127.0.0.1:0")
	require.NoError(t, err)
	client, err = pc.Dial(t.Context(), l.URLs()[0])
	require.NoError(t, err)
	server, err = l.Accept(t.Context())
	require.NoError(t, err)
	return client, server
}
