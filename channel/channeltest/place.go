package channeltest

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// place is where tensors of a test live: on a device, with a stream where the
// device has them.
type place struct {
	t      *testing.T
	kind   device.Kind
	device device.Device

	// For host memory that is valid on a stream of another device: the kind
	// that copies on it.
	streams device.Kind
	on      device.Device
}

// usual is the first device that the channel serves, host memory as it comes
// from the heap if that is one.
func usual(t *testing.T, b Backend) place {
	t.Helper()
	return places(t, b)[0]
}

// places lists the devices that the channel serves, host memory first.
func places(t *testing.T, b Backend) []place {
	t.Helper()
	descriptors := b.New(t).DeviceDescriptors()
	var out []place
	for _, k := range append([]device.Kind{device.NewCPU()}, b.Kinds...) {
		for _, d := range k.Devices() {
			if _, served := descriptors[d]; served {
				out = append(out, place{t: t, kind: k, device: d})
			}
		}
	}
	require.NotEmpty(t, out, "no device of the Backend's Kinds has a descriptor")
	return out
}

// alloc returns n bytes, valid on a stream of their own where there are
// streams.
func (p place) alloc(n int) device.Buffer {
	p.t.Helper()
	if p.streams != nil {
		return device.Bytes(make([]byte, n)).WithStream(p.stream())
	}
	b, err := p.kind.Alloc(p.device, n, p.stream())
	require.NoError(p.t, err)
	return b
}

func (p place) stream() device.Stream {
	p.t.Helper()
	k, d := p.kind, p.device
	if p.streams != nil {
		k, d = p.streams, p.on
	}
	s, err := k.NewStream(d)
	require.NoError(p.t, err)
	return s
}

// holding returns memory with these contents, in stream order.
func (p place) holding(data []byte) device.Buffer {
	p.t.Helper()
	b := p.alloc(len(data))
	p.write(b, data)
	return b
}

// write puts data into b, on b's stream.
func (p place) write(b device.Buffer, data []byte) {
	p.t.Helper()
	p.copy(b, device.Bytes(bytes.Clone(data)))
}

// scribble overwrites b on its stream with what no test sends.
func (p place) scribble(b device.Buffer) {
	p.t.Helper()
	p.write(b, bytes.Repeat([]byte{scribbled}, b.Len()))
}

// read returns the contents of b when its stream has come to them.
func (p place) read(b device.Buffer) []byte {
	p.t.Helper()
	data := p.snapshot(b)
	if s := b.Stream(); s != nil {
		require.NoError(p.t, s.Synchronize(p.t.Context()))
	}
	return data
}

// snapshot enqueues reading b and returns where the bytes will be.
func (p place) snapshot(b device.Buffer) []byte {
	p.t.Helper()
	data := make([]byte, b.Len())
	p.copy(device.Bytes(data), b)
	return data
}

// copy copies on the stream of dst or src. Between two pieces of host memory
// with a stream the bytes pass through the device that has it.
func (p place) copy(dst, src device.Buffer) {
	p.t.Helper()
	if p.streams == nil {
		require.NoError(p.t, p.kind.Copy(dst, src))
		return
	}
	s := dst.Stream()
	if s == nil {
		s = src.Stream()
	}
	via, err := p.streams.Alloc(p.on, src.Len(), s)
	require.NoError(p.t, err)
	require.NoError(p.t, p.streams.Copy(via, src))
	require.NoError(p.t, p.streams.Copy(dst, via))
}

// scribbled is a byte that never occurs in what random returns.
const scribbled = 0xee

// random returns n bytes that depend on seed.
func random(n int, seed uint64) []byte {
	data := make([]byte, n)
	const period = 4099 // a prime, so that pieces in the wrong place show
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range min(n, period) {
		data[i] = byte(r.UintN(scribbled))
	}
	for have := period; have < n; have *= 2 {
		copy(data[have:], data[:have])
	}
	return data
}

// wantBytes compares without printing megabytes.
func wantBytes(t *testing.T, want, got []byte, what string) {
	t.Helper()
	require.Equal(t, len(want), len(got), what)
	if bytes.Equal(want, got) {
		return
	}
	i := 0
	for want[i] == got[i] {
		i++
	}
	require.Failf(t, "wrong bytes", "%s: at %d of %d: want %#x, got %#x", what, i, len(want), want[i], got[i])
}

// linger gives other goroutines the chance to do what they should not.
func linger() {
	for range 200 {
		runtime.Gosched()
	}
}
