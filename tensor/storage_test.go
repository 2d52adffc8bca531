package tensor

import (
	"math"
	"runtime"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/invariants"
)

// region stands for memory that the host cannot address.
type region int

func (r region) Len() int { return int(r) }

var npu = device.Device{Kind: "npu", Index: 1}

// requireReleased requires that call, which uses released memory, returns ErrReleased or, in builds
// with the tag "invariants", panics.
func requireReleased(t *testing.T, call func() error) {
	t.Helper()
	if invariants.Enabled {
		require.Panics(t, func() { _ = call() })
		return
	}
	require.ErrorIs(t, call(), ErrReleased)
}

func TestStorageOfHostMemory(t *testing.T) {
	p := []byte{1, 2, 3, 4}
	s, err := NewStorage(device.Bytes(p), nil)
	require.NoError(t, err)
	require.Equal(t, 4, s.Len())
	require.Equal(t, device.CPU(), s.Device())
	q, err := s.Bytes()
	require.NoError(t, err)
	require.Same(t, &p[0], &q[0])
	buf, err := s.Buffer()
	require.NoError(t, err)
	q, ok := buf.Contiguous()
	require.True(t, ok)
	require.Same(t, &p[0], &q[0])
}

func TestStorageOfDeviceMemory(t *testing.T) {
	s, err := NewStorage(device.On(npu, region(64), nil), nil)
	require.NoError(t, err)
	require.Equal(t, 64, s.Len())
	require.Equal(t, npu, s.Device())
	_, err = s.Bytes()
	var typed *DeviceError
	require.ErrorAs(t, err, &typed)
	require.Equal(t, npu, typed.Device)
	buf, err := s.Buffer()
	require.NoError(t, err)
	mem, offset := buf.Memory()
	require.Equal(t, region(64), mem)
	require.Zero(t, offset)
}

func TestStorageRefusesSegments(t *testing.T) {
	_, err := NewStorage(device.Host([]byte{1}, []byte{2}), nil)
	require.ErrorIs(t, err, ErrNotContiguous)
}

func TestReleaseOnce(t *testing.T) {
	var calls atomic.Int32
	s, err := NewStorage(device.Bytes(make([]byte, 8)), func() { calls.Add(1) })
	require.NoError(t, err)
	s.Release()
	require.EqualValues(t, 1, calls.Load())
	if invariants.Enabled {
		require.Panics(t, s.Release)
	} else {
		s.Release()
	}
	require.EqualValues(t, 1, calls.Load())
	requireReleased(t, func() error { _, err := s.Bytes(); return err })
	requireReleased(t, func() error { _, err := s.Buffer(); return err })
	require.Equal(t, 8, s.Len(), "what it was is still known")
}

func TestReleaseByCollector(t *testing.T) {
	released := make(chan struct{})
	func() {
		_, err := NewStorage(device.Bytes(make([]byte, 8)), func() { close(released) })
		require.NoError(t, err)
	}()
	runtime.GC()
	<-released
}

func TestReleaseStopsCollector(t *testing.T) {
	var calls atomic.Int32
	for range 100 {
		s, err := NewStorage(device.Bytes(make([]byte, 8)), func() { calls.Add(1) })
		require.NoError(t, err)
		s.Release()
	}
	runtime.GC()
	runtime.GC()
	require.EqualValues(t, 100, calls.Load())
}

func TestHeap(t *testing.T) {
	for size := range 70 {
		s, err := Heap{}.Alloc(size)
		require.NoError(t, err)
		p, err := s.Bytes()
		require.NoError(t, err)
		require.Equal(t, make([]byte, size), p)
		require.Zero(t, uintptr(unsafe.Pointer(unsafe.SliceData(p)))%8, "size %d", size)
	}
	for _, size := range []int{-1, math.MinInt, math.MaxInt} {
		_, err := Heap{}.Alloc(size)
		var typed *SizeError
		require.ErrorAs(t, err, &typed)
		require.Equal(t, size, typed.Size)
	}
}

func TestReleasedHeapMemoryIsScribbled(t *testing.T) {
	if !invariants.Enabled {
		t.Skip("only builds with the tag invariants overwrite released memory")
	}
	x, err := Zeros(U8, 4)
	require.NoError(t, err)
	p, err := Data[uint8](x)
	require.NoError(t, err)
	x.Release()
	require.Equal(t, []byte{0xcc, 0xcc, 0xcc, 0xcc}, p)
}

func TestReadOnly(t *testing.T) {
	x, err := FromSlice([]int32{1, 2, 3}, 3)
	require.NoError(t, err)
	x.Storage().SetReadOnly(true)
	require.True(t, x.ReadOnly())
	view, err := x.Narrow(0, 1, 2)
	require.NoError(t, err)
	require.True(t, view.ReadOnly(), "views share the storage")

	require.ErrorIs(t, Set[int32](x, 9, 0), ErrReadOnly)
	require.ErrorIs(t, Fill[int32](view, 9), ErrReadOnly)
	require.ErrorIs(t, view.CopyFrom(view), ErrReadOnly)
	_, err = MutableData[int32](x)
	require.ErrorIs(t, err, ErrReadOnly)
	values, err := Data[int32](x)
	require.NoError(t, err)
	require.Equal(t, []int32{1, 2, 3}, values)

	clone, err := x.Clone()
	require.NoError(t, err)
	require.NoError(t, Set[int32](clone, 9, 0))
	x.Storage().SetReadOnly(false)
	require.NoError(t, Set[int32](x, 8, 0))
	require.Equal(t, []int32{8, 2, 3}, values)
}
