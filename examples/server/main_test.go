package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestServer(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out))
	require.Equal(t, "weight: f32[2,3], 24 bytes on cpu:0\nbias: f32[], 4 bytes on cpu:0\nthere is no colour\n", out.String())
}

// TestReplyIsChecked tests that the client allocates no memory for a message that is not a reply: one
// with a payload, with tensors or without, or with a tensor that is too large.
func TestReplyIsChecked(t *testing.T) {
	for _, d := range []pipe.Descriptor{
		{Payloads: []pipe.PayloadDescriptor{{Length: 1}}},
		{Payloads: []pipe.PayloadDescriptor{{Length: 1}}, Tensors: []pipe.TensorDescriptor{{Length: 1}}},
		{Tensors: []pipe.TensorDescriptor{{Length: maxTensor + 1}}},
	} {
		a, err := allocate(&d)
		require.ErrorIs(t, err, errNoReply)
		require.Empty(t, a.Tensors)
	}
}
