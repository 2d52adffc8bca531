package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSendCompressed checks that files that are sent with -compress arrive byte for byte, and that
// the result shows fewer bytes on the wire.
func TestSendCompressed(t *testing.T) {
	folder := weightsFolder(t)
	want := safetensorsIn(t, folder)
	for _, codec := range []string{"s2", "zstd"} {
		out := t.TempDir()
		recv, address := startRecv(t, out, "-once")
		stdout, stderr, code := tpipe(t, "send", "-json", "-compress", codec, "-to", address, folder)
		require.Zero(t, code, stderr)
		requireSame(t, want, safetensorsIn(t, filepath.Join(out, "weights")))
		var r transfer
		require.NoError(t, json.Unmarshal([]byte(stdout), &r))
		c := r.Compression
		require.Positive(t, c.Chunks)
		require.Less(t, c.WireBytes, c.Bytes)
		require.Positive(t, c.PlainChunks)
		require.Empty(t, c.Refused)
		_, _, code = recv.wait()
		require.Zero(t, code)
	}
}

// TestSendCompressedToThoseWhoCannot checks that -compress sends uncompressed, and prints the
// reason, if the receiver cannot decompress. With -dialect compatible it is a usage error.
func TestSendCompressedToThoseWhoCannot(t *testing.T) {
	out := t.TempDir()
	recv, address := startRecv(t, out, "-dialect", "compatible")
	stdout, stderr, code := tpipe(t, "send", "-compress", "s2", "-to", address, "testdata")
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "not compressed: the pipe uses the compatible dialect\n")
	requireSame(t, safetensorsIn(t, "testdata"), safetensorsIn(t, filepath.Join(out, "testdata")))
	recv.signal(os.Interrupt)
	recv.wait()

	_, stderr, code = tpipe(t, strings.Fields("send -compress s2 -dialect compatible -to 127.0.0.1:1 testdata")...)
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "-compress s2: the compatible dialect has no compression")
}
