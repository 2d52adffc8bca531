package channeltest

import (
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

// write puts data into b, on b's stream. Nobody may change data afterwards: the
// stream reads it when its turn comes.
func (p place) write(b device.Buffer, data []byte) {
	p.t.Helper()
	p.copy(b, device.Bytes(data))
}

// scribble overwrites b on its stream with what no test sends.
func (p place) scribble(b device.Buffer) {
	p.t.Helper()
	p.write(b, scribbles.bytes(b.Len()))
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

// want compares the contents of b, when its stream has come to them.
func (p place) want(data []byte, b device.Buffer, what string) {
	p.t.Helper()
	seen := borrow(b.Len())
	p.copy(device.Bytes(*seen), b)
	if s := b.Stream(); s != nil {
		require.NoError(p.t, s.Synchronize(p.t.Context()))
	}
	wantBytes(p.t, data, *seen, what)
	giveBack(seen)
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

// linger gives other goroutines the chance to do what they should not.
func linger() {
	for range 200 {
		runtime.Gosched()
	}
}
