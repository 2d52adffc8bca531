package safetensors

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// must returns v, and panics if err is not nil. It is for calls that cannot fail in a test.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestEncodeBytes checks that Encode writes the bytes that the reference implementation writes for
// the same tensors and metadata.
func TestEncodeBytes(t *testing.T) {
	x := must(tensor.FromSlice([]float32{0, 1, 2, 3, 4, 5}, 1, 2, 3))
	elements := string([]byte{0, 0, 0, 0, 0, 0, 128, 63, 0, 0, 0, 64, 0, 0, 64, 64, 0, 0, 128, 64, 0, 0, 160, 64})
	for _, c := range []struct {
		name     string
		tensors  map[string]*tensor.Tensor
		metadata map[string]string
		want     string
	}{
		{"nothing", nil, nil, "\x08\x00\x00\x00\x00\x00\x00\x00{}      "},
		{"metadata", nil, map[string]string{"framework": "pt"}, "\x28\x00\x00\x00\x00\x00\x00\x00" + `{"__metadata__":{"framework":"pt"}}     `},
		{"a tensor", map[string]*tensor.Tensor{"attn.0": x}, nil,
			"\x40\x00\x00\x00\x00\x00\x00\x00" + `{"attn.0":{"dtype":"F32","shape":[1,2,3],"data_offsets":[0,24]}}` + elements},
		{"a shorter name", map[string]*tensor.Tensor{"attn": x}, nil,
			"\x40\x00\x00\x00\x00\x00\x00\x00" + `{"attn":{"dtype":"F32","shape":[1,2,3],"data_offsets":[0,24]}}  ` + elements},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			require.NoError(t, Encode(&out, c.tensors, c.metadata))
			require.Equal(t, c.want, out.String())
		})
	}
}

func TestEncodeOrder(t *testing.T) {
	tensors := map[string]*tensor.Tensor{}
	for d := tensor.Bool; d <= tensor.C64; d++ {
		tensors["b."+d.String()] = must(tensor.Zeros(d, 1))
		tensors["a."+d.String()] = must(tensor.Zeros(d, 1))
	}
	var first bytes.Buffer
	require.NoError(t, Encode(&first, tensors, map[string]string{"b": "2", "a": "1"}))
	r, err := NewReader(bytes.NewReader(first.Bytes()), Options{})
	require.NoError(t, err)
	var names []string
	for _, info := range r.Infos() {
		names = append(names, info.Name)
		require.Zero(t, info.begin%info.ByteSize(), "%s is aligned", info.Name)
	}
	require.Equal(t, "a.i64 b.i64 a.f64 b.f64 a.c64 b.c64 a.f32 b.f32 a.i32 b.i32 a.bf16 b.bf16 a.f16 b.f16 a.i16 b.i16 a.i8 b.i8 a.u8 b.u8 a.bool b.bool",
		strings.Join(names, " "))
	for range 10 {
		var again bytes.Buffer
		require.NoError(t, Encode(&again, tensors, map[string]string{"a": "1", "b": "2"}))
		require.Equal(t, first.Bytes(), again.Bytes())
	}
}

// roundTrip encodes tensors and metadata, decodes the result, and requires that both are unchanged,
// bit for bit.
func roundTrip(t testing.TB, tensors map[string]*tensor.Tensor, metadata map[string]string) {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, Encode(&out, tensors, metadata))
	got, gotMetadata, err := Decode(&out, Options{})
	require.NoError(t, err)
	require.Equal(t, metadata, gotMetadata)
	require.Len(t, got, len(tensors))
	for name, want := range tensors {
		require.NotNil(t, got[name], name)
		same, err := tensor.Equal(want, got[name])
		require.NoError(t, err)
		require.True(t, same, name)
	}
}

func TestRoundTripOfRealFiles(t *testing.T) {
	paths := append(must(filepath.Glob("testdata/*.safetensors")),
		"testdata/independent/dtypes.safetensors", "testdata/independent/shapes.safetensors", "testdata/independent/metadata.safetensors")
	require.Len(t, paths, 6)
	for _, path := range paths {
		tensors, metadata, err := ReadFile(path, Options{})
		require.NoError(t, err)
		roundTrip(t, tensors, metadata)
	}
}

func TestRoundTripOfViewsAndNames(t *testing.T) {
	x := must(tensor.FromSlice([]int16{1, 2, 3, 4, 5, 6}, 2, 3))
	roundTrip(t, map[string]*tensor.Tensor{
		"turned": must(x.Transpose(0, 1)), "part": must(x.Slice(1, 0, 3, 2)), "row": must(x.Select(0, 1)), "repeated": must(x.Expand(2, 2, 3)),
		"scalar": tensor.Scalar(complex64(1 + 2i)), "empty": must(tensor.Zeros(tensor.F64, 0, 3)),
	}, nil)
	text := "\x00\x01\x1f\x7f\"\\/\b\f\n\r\t<>&'\u2028\u2029é😀\ufffd"
	roundTrip(t, map[string]*tensor.Tensor{text: x, "": x}, map[string]string{text: text, "": ""})
}

func TestEncodeRefuses(t *testing.T) {
	x := must(tensor.Zeros(tensor.F32, 2))
	onDevice := must(tensor.FromBuffer(device.On(device.Device{Kind: "npu"}, region(8), nil), tensor.F32, 2))
	for _, c := range []struct {
		name     string
		tensors  map[string]*tensor.Tensor
		metadata map[string]string
		want     any
	}{
		{"dtype", map[string]*tensor.Tensor{"x": must(tensor.Zeros(tensor.C128, 1))}, nil, new(*DTypeError)},
		{"name of the metadata", map[string]*tensor.Tensor{"__metadata__": x}, nil, new(*NameError)},
		{"name", map[string]*tensor.Tensor{"\xff": x}, nil, new(*NameError)},
		{"no tensor", map[string]*tensor.Tensor{"x": nil}, nil, new(*NameError)},
		{"key", nil, map[string]string{"\xff": ""}, new(*NameError)},
		{"value", nil, map[string]string{"": "\xff"}, new(*NameError)},
		{"header", nil, map[string]string{"": strings.Repeat("x", maxHeader)}, new(*LimitError)},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			require.ErrorAs(t, Encode(&out, c.tensors, c.metadata), c.want)
			require.Zero(t, out.Len())
		})
	}
	require.ErrorAs(t, Encode(&bytes.Buffer{}, map[string]*tensor.Tensor{"x": onDevice}, nil), new(*tensor.DeviceError))
}

// region stands for memory that the host cannot address.
type region int

func (r region) Len() int { return int(r) }

// narrow is a writer that fails after a number of bytes.
type narrow int

var errFull = errors.New("full")

func (n *narrow) Write(p []byte) (int, error) {
	if len(p) > int(*n) {
		return 0, errFull
	}
	*n -= narrow(len(p))
	return len(p), nil
}

func TestEncodeReportsTheWriter(t *testing.T) {
	tensors := map[string]*tensor.Tensor{"x": must(tensor.Zeros(tensor.F32, 100))}
	for _, room := range []narrow{0, 8, 80, 400} {
		require.ErrorIs(t, Encode(&room, tensors, nil), errFull)
	}
}

// namesIn returns the sorted names of the entries of the directory folder.
func namesIn(t *testing.T, folder string) []string {
	t.Helper()
	list, err := os.ReadDir(folder)
	require.NoError(t, err)
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

func TestWriteFile(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "x.safetensors")
	old := map[string]*tensor.Tensor{"x": tensor.Scalar[int32](1)}
	require.NoError(t, WriteFile(path, old, map[string]string{"version": "1"}))
	require.Equal(t, []string{"x.safetensors"}, namesIn(t, folder))

	// The second tensor fails after the first has been written.
	broken := map[string]*tensor.Tensor{
		"a": must(tensor.Zeros(tensor.I64, 1000)),
		"b": must(tensor.FromBuffer(device.On(device.Device{Kind: "npu"}, region(8), nil), tensor.F32, 2)),
	}
	require.ErrorAs(t, WriteFile(path, broken, nil), new(*tensor.DeviceError))
	require.Equal(t, []string{"x.safetensors"}, namesIn(t, folder), "nothing is left behind")
	tensors, metadata, err := ReadFile(path, Options{})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"version": "1"}, metadata)
	require.Len(t, tensors, 1)

	require.NoError(t, WriteFile(path, old, map[string]string{"version": "2"}))
	_, metadata, err = ReadFile(path, Options{})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"version": "2"}, metadata)

	require.ErrorIs(t, WriteFile(filepath.Join(folder, "missing", "x"), old, nil), os.ErrNotExist)
	require.Error(t, WriteFile(folder, old, nil), "a folder is not replaced")
	require.Equal(t, []string{"x.safetensors"}, namesIn(t, folder))
}
