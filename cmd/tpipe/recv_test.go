package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor/safetensors"
)

// startRecv starts tpipe recv into dir with the arguments args, and returns it and its address,
// HOST:PORT, once it listens.
func startRecv(t *testing.T, dir string, args ...string) (*process, string) {
	t.Helper()
	p := start(t, append([]string{"recv", "-out", dir}, args...)...)
	address, ok := strings.CutPrefix(p.line(), "listening on uv://")
	require.True(t, ok)
	return p, address
}

// weightsFolder creates a folder with several safetensors files and one other file, and returns its
// path.
func weightsFolder(t *testing.T) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "weights")
	golden := os.DirFS("../../tensor/safetensors/testdata")
	require.NoError(t, os.CopyFS(filepath.Join(folder, "golden"), golden))
	require.NoError(t, safetensors.WriteFile(filepath.Join(folder, "none.safetensors"), nil, map[string]string{"by": "test"}))
	sparseFile(t, filepath.Join(folder, "sparse.safetensors"), 3, 3<<20)
	return folder
}

// sparseFile creates a safetensors file at path with the given number of tensors of size bytes
// each. The data are zeros that take no disk blocks.
func sparseFile(t *testing.T, path string, tensors, size int) {
	t.Helper()
	header := map[string]any{}
	for i := range tensors {
		header["t"+string(rune('0'+i%10))+string(rune('a'+i/10))] =
			map[string]any{"dtype": "U8", "shape": []int{size}, "data_offsets": []int{i * size, (i + 1) * size}}
	}
	text, err := json.Marshal(header)
	require.NoError(t, err)
	data := append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)
	require.NoError(t, os.WriteFile(path, data, 0o666))
	require.NoError(t, os.Truncate(path, int64(len(data)+tensors*size)))
}

// safetensorsIn returns the contents of the safetensors files below dir, by their paths relative to
// dir. It fails the test if there is a part file.
func safetensorsIn(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	found := map[string][]byte{}
	require.NoError(t, fs.WalkDir(os.DirFS(dir), ".", func(p string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		require.NotContains(t, p, "tpipe-part")
		if strings.HasSuffix(p, ".safetensors") {
			found[p], err = os.ReadFile(filepath.Join(dir, p))
		}
		return err
	}))
	return found
}

func requireSame(t *testing.T, want, got map[string][]byte) {
	t.Helper()
	require.Len(t, got, len(want))
	for name, data := range want {
		require.True(t, bytes.Equal(data, got[name]), name)
	}
}

func TestSendFolder(t *testing.T) {
	folder := weightsFolder(t)
	want := safetensorsIn(t, folder)
	for _, flags := range []string{"", "-dialect compatible", "-dialect native", "-transport uv", "-v"} {
		out := t.TempDir()
		recv, address := startRecv(t, out, "-once")
		to := map[bool]string{true: "uv://" + address, false: address}[flags == ""]
		stdout, stderr, code := tpipe(t, append([]string{"send", folder, "-to", to}, strings.Fields(flags)...)...)
		require.Zero(t, code, stderr)
		require.Empty(t, stderr, "no bar where there is no terminal")
		requireSame(t, want, safetensorsIn(t, filepath.Join(out, "weights")))
		require.Contains(t, stdout, "skipped: not *.safetensors")
		require.Contains(t, stdout, " to "+address+", ")
		require.Contains(t, stdout, "weights/sparse.safetensors: 3 tensors, 9.0 MiB, crc32c ")
		require.Contains(t, stdout, "files, ")
		require.Equal(t, flags == "-v", strings.Contains(stdout, "transport"), stdout)
		received, stderr, code := recv.wait()
		require.Zero(t, code, stderr)
		require.Empty(t, stderr)
		require.Contains(t, received, " from tpipe send (127.0.0.1:")
		over := map[string]string{"shm": "over shm", "uv": "over uv, no TLS"}[withinMachine()]
		if flags == "-transport uv" {
			over = "over uv, no TLS"
		}
		require.Contains(t, received, " dialect, "+over+"\n")
		require.Contains(t, stdout, " dialect, "+over+"\n")
		require.ElementsMatch(t, linesWith(stdout, "crc32c"), linesWith(received, "crc32c"))
		require.Len(t, linesWith(stdout, "crc32c"), len(want))
	}
}

func linesWith(text, what string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, what) {
			out = append(out, line)
		}
	}
	return out
}

func TestSendJSON(t *testing.T) {
	folder := weightsFolder(t)
	bytes := 0
	for _, data := range safetensorsIn(t, folder) {
		bytes += len(data)
	}
	out := t.TempDir()
	recv, address := startRecv(t, out, "-quiet")
	stdout, failed, code := tpipe(t, "send", "-json", "-to", address, folder)
	require.Zero(t, code, failed)
	require.Empty(t, failed)
	var r transfer
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Equal(t, len(r.InPlace), r.Files)
	require.Equal(t, bytes, r.Bytes)
	require.Equal(t, pipe.DialectNative, r.Plan.Dialect)
	require.Equal(t, withinMachine(), r.Plan.Transport)
	require.Equal(t, address, r.Address)
	require.Nil(t, r.TLS)
	require.Positive(t, r.Seconds)
	require.InEpsilon(t, float64(bytes)/r.Seconds/1e9, r.GBps, 1e-6)
	require.Empty(t, r.Error)
	tensors := 0
	for _, f := range r.InPlace {
		tensors += f.Tensors
		require.Len(t, f.CRC32C, 8)
	}
	require.Equal(t, tensors, r.Tensors)

	stdout, failed, code = tpipe(t, "send", "-json", "-to", address, folder)
	require.Equal(t, exitFailed, code)
	require.Equal(t, 1, strings.Count(failed, "\n"), failed)
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Contains(t, r.Error, "exists already")
	require.Zero(t, r.Files)
	recv.signal(os.Interrupt)
	rest, _, code := recv.wait()
	require.Zero(t, code)
	require.Empty(t, rest, "quiet")
}

// TestRecvJSON checks that a recv with -json prints its address on stderr, and on stdout one object
// for each transfer, failed ones included, and nothing else.
func TestRecvJSON(t *testing.T) {
	cmd := program(t, "recv", "-json", "-out", t.TempDir())
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	late := time.AfterFunc(processTimeout, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	defer func() { _ = cmd.Process.Kill() }() // if the test fails
	line := make([]byte, 200)
	n, err := stderr.Read(line)
	require.NoError(t, err)
	address, ok := strings.CutPrefix(strings.TrimSpace(string(line[:n])), "listening on uv://")
	require.True(t, ok)
	for _, want := range []int{exitDone, exitFailed} {
		_, _, code := tpipe(t, "send", "-to", address, "testdata")
		require.Equal(t, want, code)
	}
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	dec := json.NewDecoder(stdout)
	var first, second transfer
	require.NoError(t, dec.Decode(&first))
	require.NoError(t, dec.Decode(&second))
	require.Equal(t, io.EOF, dec.Decode(&second))
	require.Equal(t, 1, first.Files)
	require.Equal(t, "tpipe send", first.Peer)
	require.Empty(t, first.Error)
	require.Contains(t, second.Error, "exists already")
	_, err = io.Copy(io.Discard, stderr)
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())
}

// TestExistingFile checks that a recv rejects a file that exists and does not change it, and
// replaces it with -overwrite.
func TestExistingFile(t *testing.T) {
	out := t.TempDir()
	old := filepath.Join(out, "testdata", "digits_split_mlp_init.safetensors")
	require.NoError(t, os.MkdirAll(filepath.Dir(old), 0o777))
	require.NoError(t, os.WriteFile(old, []byte("old"), 0o666))
	recv, address := startRecv(t, out)
	stdout, stderr, code := tpipe(t, "send", "-to", address, "testdata")
	require.Equal(t, exitFailed, code)
	require.Equal(t, "tpipe send: the receiver reports: testdata/digits_split_mlp_init.safetensors: "+
		"exists already; start the receiver with -overwrite to replace it\n", stderr)
	require.Empty(t, stdout)
	require.Contains(t, recv.stop(), "tpipe recv: from tpipe send (127.0.0.1:")
	requireSame(t, map[string][]byte{"testdata/digits_split_mlp_init.safetensors": []byte("old")}, safetensorsIn(t, out))

	recv, address = startRecv(t, out, "-overwrite")
	_, stderr, code = tpipe(t, "send", "-to", address, "testdata", "-quiet")
	require.Zero(t, code, stderr)
	require.Empty(t, recv.stop())
	requireSame(t, map[string][]byte{"testdata/digits_split_mlp_init.safetensors": weightsFile}, safetensorsIn(t, out))
}

func TestRecvOnce(t *testing.T) {
	out := t.TempDir()
	recv, address := startRecv(t, out, "-once", "-max-bytes", "1KiB")
	_, stderr, code := tpipe(t, "send", "-to", address, "testdata")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "exceed the -max-bytes of 1024")
	_, stderr, code = recv.wait()
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "tpipe recv: from tpipe send (127.0.0.1:")
	require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	require.Empty(t, safetensorsIn(t, out))

	recv, address = startRecv(t, out, "-once")
	send := sendLarge(t, recv, address)
	_, stderr, code = tpipe(t, "send", "-to", address, "testdata")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "it was started with -once and serves another sender")
	send.signal(os.Interrupt)
	send.resume()
	_, _, code = recv.wait()
	require.Equal(t, exitFailed, code)
}

func TestUnwritableDirectory(t *testing.T) {
	if _, err := os.Stat("/proc/self"); err != nil {
		t.Skipf("no directory that nobody can write to: %v", err)
	}
	_, stderr, code := tpipe(t, "recv", "-out", "/proc/self")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "-out: /proc/self is not writable: ")
	require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
}

// TestFileSizeLimit checks that a transfer that the recv cannot write, because a file exceeds the
// size limit of the process, fails and leaves no part files, and that the next transfer succeeds.
func TestFileSizeLimit(t *testing.T) {
	out := t.TempDir()
	recv := startCommand(t, limitedShell(t, "recv", "-out", out))
	address, ok := strings.CutPrefix(recv.line(), "listening on uv://")
	require.True(t, ok)
	folder := weightsFolder(t)
	_, stderr, code := tpipe(t, "send", "-to", address, folder)
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "file too large")
	_, stderr, code = tpipe(t, "send", "-to", address, "testdata")
	require.Zero(t, code, stderr)
	require.Contains(t, recv.stop(), "file too large")
	safetensorsIn(t, out) // checks that there are no part files
}
