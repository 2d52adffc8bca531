package codec_test

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// TestThroughPipe checks that a message that is sent through a pipe, with its bytes as metadata, is
// decoded to an equal value. The receiver learns the sizes of the tensors from the metadata and
// reads them into memory of a pool.
func TestThroughPipe(t *testing.T) {
	c, err := tensorpipe.NewContext(pipe.Options{})
	require.NoError(t, err)
	defer c.Close()
	l, err := c.Listen(t.Context(), "uv://127.0.0.1:0")
	require.NoError(t, err)
	client, err := c.Dial(t.Context(), l.URLs()[0])
	require.NoError(t, err)
	server, err := l.Accept(t.Context())
	require.NoError(t, err)

	big, err := tensor.Zeros(tensor.F32, 1<<18)
	require.NoError(t, err)
	require.NoError(t, tensor.Fill(big, float32(1.5)))
	half, err := big.Narrow(0, 0, 1<<17)
	require.NoError(t, err)
	small, err := tensor.FromSlice([]int64{1, 2, 3}, 3)
	require.NoError(t, err)
	sent := gradients{Step: 7, Layers: map[string]*tensor.Tensor{"big": big, "half": half, "small": small}, Cause: io.EOF}

	registry := codec.NewRegistry()
	e := codec.NewEncoder(registry, codec.Limits{})
	require.NoError(t, e.Encode(&sent))
	data, tensors, err := e.Finish()
	require.NoError(t, err)
	require.Len(t, tensors, 2)
	op := client.WriteAsync(t.Context(), &pipe.Message{Metadata: data, Tensors: tensors})

	in, err := server.Next(t.Context())
	require.NoError(t, err)
	got, err := receive(t, codec.NewDecoder(registry, codec.Limits{}), in)
	require.NoError(t, err)
	require.NoError(t, op.Wait(t.Context()))
	require.Equal(t, 7, got.Step)
	require.Same(t, io.EOF, got.Cause)
	require.Same(t, got.Layers["big"].Storage(), got.Layers["half"].Storage())
	for name, want := range sent.Layers {
		same, err := tensor.Equal(want, got.Layers[name])
		require.NoError(t, err)
		require.True(t, same, name)
	}
}

// receive allocates memory of a pool for the tensors of the message in, reads them, and decodes and
// returns the value of the message. The error is that of Decode or Finish.
func receive(t *testing.T, d *codec.Decoder, in *pipe.Incoming) (got gradients, err error) {
	t.Helper()
	require.NoError(t, d.Reset(in.Descriptor().Metadata))
	pool := tensor.NewPool(tensor.PoolOptions{})
	var memory pipe.Allocation
	var storages []*tensor.Storage
	require.Len(t, d.Parts(), len(in.Descriptor().Tensors))
	for i, part := range d.Parts() {
		require.Equal(t, in.Descriptor().Tensors[i].Length, part.Bytes)
		s, err := pool.Alloc(part.Bytes)
		require.NoError(t, err)
		buf, err := s.Buffer()
		require.NoError(t, err)
		storages = append(storages, s)
		memory.Tensors = append(memory.Tensors, buf)
	}
	require.NoError(t, in.Read(t.Context(), memory))
	require.NoError(t, d.Supply(storages))
	if err := d.Decode(&got); err != nil {
		return got, err
	}
	return got, d.Finish()
}
