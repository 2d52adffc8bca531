package safetensors

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

func TestFile(t *testing.T) {
	leakcheck.Check(t)
	f, err := Open("testdata/digits_split_mlp_init.safetensors", Options{})
	require.NoError(t, err)
	info, err := f.Info("stage1.bias")
	require.NoError(t, err)
	require.Equal(t, []int{10}, info.Shape)
	require.Equal(t, "F32", info.DType)
	require.Equal(t, 40, info.ByteSize())
	_, err = f.Info("stage2.bias")
	require.Equal(t, &NotFoundError{Tensor: "stage2.bias"}, err)
	_, err = f.Tensor("stage2.bias")
	require.Equal(t, &NotFoundError{Tensor: "stage2.bias"}, err)

	x, err := f.Tensor("stage1.bias")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.Len(t, elements(t, x), 40, "tensors stay")
	_, err = f.Tensor("stage1.bias")
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, f.Close(), ErrClosed)
}

func TestOpenRefuses(t *testing.T) {
	leakcheck.Check(t)
	_, err := Open(t.TempDir()+"/missing", Options{})
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = Open(t.TempDir(), Options{})
	require.ErrorContains(t, err, "not a regular file")
	_, err = Open(os.DevNull, Options{})
	require.ErrorContains(t, err, "not a regular file")
	_, err = Open(save(t, nil), Options{})
	require.ErrorAs(t, err, new(*FormatError))
}

func TestFileFromManyGoroutines(t *testing.T) {
	f, err := Open("testdata/autograd_ops.safetensors", Options{})
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for _, info := range f.Infos() {
				x, err := f.Tensor(info.Name)
				if errors.Is(err, ErrClosed) {
					return
				}
				if err != nil || x.ByteSize() != info.ByteSize() {
					t.Errorf("%s: %v", info.Name, err)
				}
			}
		})
	}
	require.NoError(t, f.Close())
	wg.Wait()
}

// twoTensors returns the contents of a file with two U8 tensors: "a" of 1000 bytes, on the first
// page of the file, and "b" of 1 MiB, large enough for a pool to map it.
func twoTensors() []byte {
	header := entries(`"dtype":"U8","shape":[1000],"data_offsets":[0,1000]`, `"dtype":"U8","shape":[1048576],"data_offsets":[1000,1049576]`)
	return build(header, bytes.Repeat([]byte{7}, 1049576)...)
}

// shrinking opens a file with the contents of twoTensors, then truncates it to size bytes, and
// returns the File, which the test closes at its end.
func shrinking(t *testing.T, size int, options Options) *File {
	t.Helper()
	path := save(t, twoTensors())
	f, err := Open(path, options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	require.NoError(t, os.Truncate(path, int64(size)))
	return f
}

func TestFileThatShrinks(t *testing.T) {
	for _, c := range []struct {
		name          string
		size          int
		first, second bool // can be read
	}{
		{"nothing is left", 0, false, false},
		{"part of the header", 10, false, false},
		{"part of the first", 600, false, false},
		{"the first", 4096, true, false},
		{"half of the second", 500_000, true, false},
		{"all but a byte", len(twoTensors()) - 1, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := shrinking(t, c.size, Options{})
			for name, ok := range map[string]bool{"a": c.first, "b": c.second} {
				x, err := f.Tensor(name)
				if !ok {
					require.ErrorIs(t, err, ErrShrunk, name)
					continue
				}
				require.NoError(t, err, name)
				require.Equal(t, bytes.Repeat([]byte{7}, 1000), elements(t, x))
			}
		})
	}
}

// TestFailedReadReleases checks that File.Tensor releases the memory of a tensor that could not be
// read.
func TestFailedReadReleases(t *testing.T) {
	pool := tensor.NewPool(tensor.PoolOptions{})
	f := shrinking(t, 4096, Options{Allocator: pool})
	_, err := f.Tensor("b")
	require.ErrorIs(t, err, ErrShrunk)
	require.Zero(t, pool.Stats().InUse)
	require.Equal(t, 1, pool.Stats().Released)
}

// fault is an error as the runtime panics with.
type fault struct{ at uintptr }

func (f fault) Error() string { return "fault" }
func (f fault) RuntimeError() {}
func (f fault) Addr() uintptr { return f.at }

// TestOtherPanicsGoOn checks that convertFault turns only faults within the mapping into errors.
// Any other panic is a defect, which must stay visible, and continues.
func TestOtherPanicsGoOn(t *testing.T) {
	mapped := bytes.Repeat([]byte{1}, 16) // on the heap, where it stays in place
	start := uintptr(unsafe.Pointer(&mapped[0]))
	require.ErrorIs(t, convertFault(mapped, fault{at: start}), ErrShrunk)
	require.ErrorIs(t, convertFault(mapped, fault{at: start + 15}), ErrShrunk)
	for _, other := range []any{"text", errors.New("plain"), fault{at: start - 1}, fault{at: start + 16}} {
		require.PanicsWithValue(t, other, func() { _ = convertFault(mapped, other) })
	}
}

// Parts of a tensor can be read without an allocation of all of it.
func TestReadAt(t *testing.T) {
	f, err := Open("testdata/digits_split_mlp_init.safetensors", Options{})
	require.NoError(t, err)
	x, err := f.Tensor("stage1.bias")
	require.NoError(t, err)
	want, err := x.Storage().Bytes()
	require.NoError(t, err)
	got := make([]byte, len(want))
	require.NoError(t, f.ReadAt(got[:7], "stage1.bias", 0))
	require.NoError(t, f.ReadAt(got[7:], "stage1.bias", 7))
	require.Equal(t, want, got)
	require.NoError(t, f.ReadAt(nil, "stage1.bias", len(want)))

	var index *tensor.IndexError
	for _, offset := range []int{-1, 1, len(want) + 1, int(^uint(0) >> 1)} {
		require.ErrorAs(t, f.ReadAt(got, "stage1.bias", offset), &index)
	}
	var missing *NotFoundError
	require.ErrorAs(t, f.ReadAt(got, "missing", 0), &missing)
	require.NoError(t, f.Close())
	require.ErrorIs(t, f.ReadAt(got, "stage1.bias", 0), ErrClosed)
}
