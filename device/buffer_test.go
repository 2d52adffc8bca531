package device_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// region stands for device memory.
type region int

func (r region) Len() int { return int(r) }

// split returns data divided into segments of the given sizes, followed by one segment with the
// remaining bytes, which may be empty. The segments share the memory of data.
func split(data []byte, sizes ...int) [][]byte {
	var out [][]byte
	for _, n := range sizes {
		out = append(out, data[:n])
		data = data[n:]
	}
	return append(out, data)
}

func numbered(n int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i)
	}
	return data
}

func TestHostSegments(t *testing.T) {
	data := numbered(10)
	for _, c := range []struct {
		name       string
		segments   [][]byte
		contiguous bool
	}{
		{"one", split(data), true},
		{"three", split(data, 3, 3), false},
		{"empty ones in front", split(data, 0, 0), true},
		{"empty one behind", split(data, 10), true},
		{"empty ones between", split(data, 0, 4, 0, 0, 5), false},
		{"none", nil, true},
		{"only empty ones", [][]byte{nil, {}, nil}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := device.Host(c.segments...)
			want := bytes.Join(c.segments, nil)
			require.Equal(t, len(want), b.Len())
			require.Equal(t, device.CPU(), b.Device())
			require.True(t, b.IsHost())
			require.Nil(t, b.Stream())

			segments := b.AppendSegments([][]byte{{42}})
			require.Equal(t, []byte{42}, segments[0], "appended behind what is there")
			for _, s := range segments[1:] {
				require.NotEmpty(t, s)
			}
			require.Equal(t, len(want), len(bytes.Join(segments[1:], nil)))

			p, ok := b.Contiguous()
			require.Equal(t, c.contiguous, ok)
			if ok {
				require.True(t, bytes.Equal(want, p))
			}
		})
	}
}

func TestBufferIsAView(t *testing.T) {
	p := []byte{1, 2, 3}
	b := device.Bytes(p)
	got, ok := b.Contiguous()
	require.True(t, ok)
	require.Same(t, &p[0], &got[0])
	require.Zero(t, device.Bytes(nil).Len())
	require.True(t, device.Bytes(nil).IsHost())
}

func TestZeroBuffer(t *testing.T) {
	var b device.Buffer
	require.True(t, b.IsHost())
	require.True(t, b.Device().IsZero())
	require.Zero(t, b.Len())
	require.Empty(t, b.AppendSegments(nil))
	require.Zero(t, b.Slice(0, 0).Len())
}

// Slice returns the right bytes for every range of host memory in different divisions into
// segments, also when a slice is sliced again.
func TestSliceOfSegments(t *testing.T) {
	data := numbered(9)
	for _, sizes := range [][]int{{}, {4}, {0, 4}, {1, 0, 3, 0}, {3, 3}, {1, 1, 1, 1, 1, 1, 1, 1}} {
		b := device.Host(split(data, sizes...)...)
		for off := range len(data) + 1 {
			for n := range len(data) + 1 - off {
				name := fmt.Sprintf("%v[%d:+%d]", sizes, off, n)
				s := b.Slice(off, n)
				require.Equal(t, n, s.Len(), name)
				require.Equal(t, b.Device(), s.Device(), name)
				require.True(t, bytes.Equal(data[off:off+n], bytes.Join(s.AppendSegments(nil), nil)), name)
				again := s.Slice(n/2, n-n/2)
				require.True(t, bytes.Equal(data[off+n/2:off+n], bytes.Join(again.AppendSegments(nil), nil)), name)
			}
		}
	}
}

// The capacity of each segment of a slice equals its length, so that an append does not overwrite
// later bytes.
func TestSliceCutsCapacity(t *testing.T) {
	data := numbered(8)
	for _, b := range []device.Buffer{device.Bytes(data), device.Host(data[:2], data[2:])} {
		for _, s := range b.Slice(1, 4).AppendSegments(nil) {
			require.Equal(t, len(s), cap(s))
		}
	}
}

func TestSliceOfDeviceMemory(t *testing.T) {
	npu := device.Device{Kind: "npu", Index: 1}
	s := newStream(npu)
	b := device.On(npu, region(100), s)
	require.False(t, b.IsHost())
	require.Equal(t, 100, b.Len())
	require.Empty(t, b.AppendSegments(nil))
	_, ok := b.Contiguous()
	require.False(t, ok)

	cut := b.Slice(10, 50).Slice(5, 20)
	mem, off := cut.Memory()
	require.Equal(t, region(100), mem)
	require.Equal(t, 15, off)
	require.Equal(t, 20, cut.Len())
	require.Equal(t, npu, cut.Device())
	require.Equal(t, s, cut.Stream())
}

func TestSliceOutsideOfBuffer(t *testing.T) {
	const most = int(^uint(0) >> 1)
	for _, b := range []device.Buffer{device.Bytes(make([]byte, 4)), device.On(device.CPU(), region(4), nil)} {
		for _, c := range [][2]int{{-1, 1}, {0, -1}, {0, 5}, {5, 0}, {4, 1}, {1, most}, {most, 1}, {most, most}} {
			require.Panics(t, func() { b.Slice(c[0], c[1]) }, "%v", c)
		}
	}
}

func TestWithStreamOfBuffer(t *testing.T) {
	s := newStream(device.Device{Kind: "npu"})
	b := device.Bytes([]byte{1, 2, 3, 4})
	on := b.WithStream(s)
	require.Equal(t, s, on.Stream())
	require.Equal(t, s, on.Slice(1, 2).Stream())
	require.Nil(t, b.Stream(), "the original is untouched")
	require.Nil(t, on.WithStream(nil).Stream())
}

func TestBufferAllocations(t *testing.T) {
	data := make([]byte, 64)
	segments := [][]byte{data[:32], data[32:]}
	scratch := make([][]byte, 0, 4)
	two := device.Host(segments...)
	for name, f := range map[string]func(){
		"Bytes":                   func() { sink = device.Bytes(data) },
		"Host of a list":          func() { sink = device.Host(segments...) },
		"Slice":                   func() { sink = device.Bytes(data).Slice(8, 16) },
		"Slice within one of two": func() { sink = two.Slice(40, 8) },
		"AppendSegments":          func() { scratch = two.AppendSegments(scratch[:0]) },
		"CopyHost":                func() { _ = device.CopyHost(device.Bytes(data), two) },
	} {
		require.Zero(t, testing.AllocsPerRun(100, f), name)
	}
}

var sink device.Buffer
