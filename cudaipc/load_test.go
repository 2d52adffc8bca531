package cudaipc

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/safetensors"
)

func openFile(t testing.TB, path string) *safetensors.File {
	t.Helper()
	file, err := safetensors.Open(path, safetensors.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() }) // a test may have closed it
	return file
}

// bytesTensor returns a tensor of n bytes.
func bytesTensor(t testing.TB, seed, n int) *tensor.Tensor {
	t.Helper()
	x, err := tensor.FromSlice(pattern(seed, n), n)
	require.NoError(t, err)
	return x
}

// largeFile writes a file whose tensors are larger than the page-locked blocks together, and end
// between their boundaries.
func largeFile(t testing.TB) (path string, want map[string]*tensor.Tensor) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "large.safetensors")
	want = map[string]*tensor.Tensor{
		"a": bytesTensor(t, 1, 2*loadChunk+12345), "b": bytesTensor(t, 2, 1), "c": bytesTensor(t, 3, loadChunk+1), "none": bytesTensor(t, 4, 0),
		"scalar": tensor.Scalar(2.5),
	}
	require.NoError(t, safetensors.WriteFile(path, want, nil))
	return path, want
}

// smallFile writes a file whose tensors fit into one page-locked block, which is larger than the least one.
func smallFile(t testing.TB) (path string, want map[string]*tensor.Tensor) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "small.safetensors")
	weights, err := tensor.FromSlice([]float32{1.5, -2, 3, 0.25, 5, -6}, 2, 3)
	require.NoError(t, err)
	steps, err := tensor.FromSlice([]int64{1 << 40, -1}, 2)
	require.NoError(t, err)
	want = map[string]*tensor.Tensor{"weights": weights, "steps": steps, "bytes": bytesTensor(t, 5, 3*leastPinned/2+1), "scalar": tensor.Scalar(2.5)}
	require.NoError(t, safetensors.WriteFile(path, want, nil))
	return path, want
}

func (f *fixture) requireSameBytes(want, got *tensor.Tensor, name string) {
	f.Helper()
	require.True(f, slices.Equal(want.Shape(), got.Shape()), name)
	require.Equal(f, want.DType(), got.DType(), name)
	w, err := want.Storage().Bytes()
	require.NoError(f, err)
	g, err := f.fetch(got).Storage().Bytes()
	require.NoError(f, err)
	require.True(f, string(w) == string(g), name)
}

// Tensors of files are loaded to a device, with few blocks of page-locked memory, and without calls
// that wait for the device.
func TestLoadTensors(t *testing.T) {
	f := newFixture(t, Options{})
	f.set("CUSIM_DELAY_US", late)
	all := f.Devices()
	on := all[min(1, len(all)-1)]
	ctx := device.WithStream(t.Context(), f.stream(on))
	large, inLarge := largeFile(t)
	small, inSmall := smallFile(t)
	for _, c := range []struct {
		path   string
		want   map[string]*tensor.Tensor
		blocks int
	}{{large, inLarge, 2}, {small, inSmall, 1}} {
		want, file := c.want, openFile(t, c.path)
		hostAllocs, blocking := f.calls("cuMemHostAlloc"), f.blocking()
		got, err := f.LoadTensors(ctx, file, on)
		require.NoError(t, err)
		require.Equal(t, blocking, f.blocking())
		allocated := f.calls("cuMemHostAlloc") - hostAllocs
		require.LessOrEqual(t, allocated, c.blocks, c.path)
		if f.control != nil { // whose copies are late, so that no block is free again
			require.Equal(t, c.blocks, allocated, c.path)
		}
		require.Len(t, got, len(want))
		for name, x := range want {
			require.Equal(t, on, got[name].Device())
			f.requireSameBytes(x, got[name], name)
			one, err := f.LoadTensor(ctx, file, name, on)
			require.NoError(t, err)
			f.requireSameBytes(x, one, name)
			one.Release()
		}
	}
}

// The page-locked blocks are as small as the tensors allow, and not used again before the copies out of
// them are done.
func TestLoadTensorKeepsItsBlocks(t *testing.T) {
	f := newFixture(t, Options{})
	path, want := largeFile(t)
	file := openFile(t, path)
	s := f.stream(f.zero)
	ctx := device.WithStream(t.Context(), s)
	release := f.hold(s)
	first, err := f.LoadTensor(ctx, file, "scalar", f.zero)
	require.NoError(t, err)
	_, err = f.LoadTensor(ctx, file, "b", f.zero)
	require.NoError(t, err)
	require.Len(t, f.gpus[0].pinned.all, 2)
	require.Len(t, f.gpus[0].pinned.all[0].data, leastPinned)
	release()
	f.requireSameBytes(want["scalar"], first, "scalar")
}

// Loading ends with its context, when it waits for the device.
func TestLoadTensorEndsWithItsContext(t *testing.T) {
	f := newFixture(t, Options{})
	path, _ := largeFile(t)
	file := openFile(t, path)
	s := f.stream(f.zero)
	release := f.hold(s)
	ctx, cancel := context.WithTimeout(device.WithStream(t.Context(), s), 5*time.Millisecond)
	defer cancel()
	_, err := f.LoadTensor(ctx, file, "a", f.zero)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = f.LoadTensors(ctx, file, f.zero)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Zero(t, f.stats(f.zero).InUse)
	release()
}

func TestLoadTensorErrors(t *testing.T) {
	f := newFixture(t, Options{MemoryLimit: smallSegment})
	path, _ := largeFile(t)
	file := openFile(t, path)
	ctx := t.Context()
	var missing *safetensors.NotFoundError
	_, err := f.LoadTensor(ctx, file, "missing", f.zero)
	require.ErrorAs(t, err, &missing)
	_, err = f.LoadTensor(ctx, file, "a", device.CPU())
	require.ErrorIs(t, err, device.ErrDevice)
	_, err = f.LoadTensor(ctx, file, "a", f.zero)
	require.ErrorIs(t, err, ErrOutOfMemory)
	_, err = f.LoadTensors(ctx, file, f.zero)
	require.ErrorIs(t, err, ErrOutOfMemory)
	require.NoError(t, file.Close())
	_, err = f.LoadTensor(ctx, file, "b", f.zero)
	require.ErrorIs(t, err, safetensors.ErrClosed)
	require.Zero(t, f.stats(f.zero).InUse)
}

func TestLoadTensorWithoutHostMemory(t *testing.T) {
	f := newFixture(t, Options{})
	path, _ := smallFile(t)
	f.set("CUSIM_FAIL", "cuMemHostAlloc:2")
	_, err := f.LoadTensor(t.Context(), openFile(t, path), "bytes", f.zero)
	require.ErrorIs(t, err, driver.ResultOutOfMemory)
	require.Zero(t, f.stats(f.zero).InUse)
}
