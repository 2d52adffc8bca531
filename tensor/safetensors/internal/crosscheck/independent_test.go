package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	theirs "github.com/maruel/safetensors"
	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	ours "github.com/tensorpipe-go/tensorpipe/tensor/safetensors"
)

const testdata = "../../testdata"

func TestCommittedFilesAreCurrent(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, write(folder))
	committed, err := filepath.Glob(filepath.Join(testdata, "independent", "*.safetensors"))
	require.NoError(t, err)
	require.Len(t, committed, len(files()))
	for _, path := range committed {
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Join(folder, filepath.Base(path)))
		require.NoError(t, err)
		require.Equal(t, want, got, path)
	}
}

// requireSame requires that the other implementation finds exactly tensors and metadata in file,
// the contents that this package has written from them.
func requireSame(t *testing.T, file []byte, tensors map[string]*tensor.Tensor, metadata map[string]string) {
	t.Helper()
	parsed, err := theirs.Parse(file)
	require.NoError(t, err)
	require.Equal(t, metadata, parsed.Metadata)
	require.Len(t, parsed.Tensors, len(tensors))
	for _, got := range parsed.Tensors {
		want := tensors[got.Name]
		require.NotNil(t, want, got.Name)
		require.Equal(t, strings.ToUpper(want.DType().String()), string(got.DType), got.Name)
		require.Len(t, got.Shape, want.Rank(), got.Name)
		for i, dim := range want.Shape() {
			require.EqualValues(t, dim, got.Shape[i], got.Name)
		}
		packed, err := want.Contiguous()
		require.NoError(t, err)
		buf, err := packed.Buffer()
		require.NoError(t, err)
		p, ok := buf.Contiguous()
		require.True(t, ok)
		require.True(t, bytes.Equal(p, got.Data), got.Name)
	}
}

// TestTheyReadWhatWeWrite checks, for every test file that this package can read, that the other
// implementation reads the same from the file that this package writes of its contents.
func TestTheyReadWhatWeWrite(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(testdata, "*.safetensors"))
	require.NoError(t, err)
	for _, name := range []string{"dtypes", "shapes", "metadata"} {
		paths = append(paths, filepath.Join(testdata, "independent", name+".safetensors"))
	}
	require.Len(t, paths, 6)
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			tensors, metadata, err := ours.ReadFile(path, ours.Options{})
			require.NoError(t, err)
			copied := filepath.Join(t.TempDir(), "copy.safetensors")
			require.NoError(t, ours.WriteFile(copied, tensors, metadata))
			file, err := os.ReadFile(copied)
			require.NoError(t, err)
			requireSame(t, file, tensors, metadata)
		})
	}
}

func TestTheyReadOurViews(t *testing.T) {
	x, err := tensor.FromBuffer(device.Bytes(pattern("x", theirs.I32, 4*24)), tensor.I32, 4, 6)
	require.NoError(t, err)
	turned, err := x.Transpose(0, 1)
	require.NoError(t, err)
	part, err := x.Slice(1, 1, 6, 2)
	require.NoError(t, err)
	row, err := x.Select(0, 3)
	require.NoError(t, err)
	tensors := map[string]*tensor.Tensor{"x": x, "turned": turned, "part": part, "row": row}
	var out bytes.Buffer
	require.NoError(t, ours.Encode(&out, tensors, nil))
	requireSame(t, out.Bytes(), tensors, nil)
}

// TestWeReadWhatTheyWrite checks that this package reads the files that the other implementation
// writes, except dtypes that it does not support. It also checks the bytes of pattern, on which the
// tests of package safetensors depend.
func TestWeReadWhatTheyWrite(t *testing.T) {
	for name, file := range files() {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			require.NoError(t, file.Serialize(&out))
			r, err := ours.NewReader(&out, ours.Options{})
			require.NoError(t, err)
			require.Equal(t, file.Metadata, r.Metadata())
			require.Len(t, r.Infos(), len(file.Tensors))
			for range file.Tensors {
				info, x, err := r.Next()
				if name == "unsupported" && err != nil {
					require.ErrorAs(t, err, new(*ours.DTypeError))
					continue
				}
				require.NoError(t, err)
				buf, err := x.Buffer()
				require.NoError(t, err)
				p, _ := buf.Contiguous()
				require.Equal(t, pattern(info.Name, theirs.DType(info.DType), info.ByteSize()), append([]byte{}, p...))
			}
		})
	}
}
