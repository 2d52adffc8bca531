package channeltest

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// allocator allocates and accesses the memory of a test: on a device, with a stream if the device
// has streams.
type allocator struct {
	t      *testing.T
	kind   device.Kind
	device device.Device

	strict *Strict // of the Backend

	// For host memory that is valid on a stream of another device: the kind and
	// the device of that stream.
	streams      device.Kind
	streamDevice device.Device
}

// defaultAllocator returns the allocator of the first device that the channel of b serves: of plain
// host memory if the channel serves cpu:0.
func defaultAllocator(t *testing.T, b Backend) allocator {
	t.Helper()
	return allocators(t, b)[0]
}

// allocators returns one allocator for each device of b that the channel serves, with plain host
// memory first if the channel serves it. The test fails if there is none.
func allocators(t *testing.T, b Backend) []allocator {
	t.Helper()
	descriptors := b.New(t).DeviceDescriptors()
	var out []allocator
	for _, k := range append([]device.Kind{device.NewCPU()}, b.Kinds...) {
		for _, d := range k.Devices() {
			if _, served := descriptors[d]; served {
				out = append(out, allocator{t: t, kind: k, device: d, strict: b.Strict})
			}
		}
	}
	require.NotEmpty(t, out, "no device of the Backend's Kinds has a descriptor")
	return out
}

// alloc returns n bytes of new memory. If the device has streams, or host memory with a stream is
// tested, the memory is valid on a new stream. It is never freed explicitly.
func (p allocator) alloc(n int) device.Buffer {
	p.t.Helper()
	if p.streams != nil {
		return p.hostMemory(n, p.stream())
	}
	b, err := p.kind.Alloc(p.device, n, p.stream())
	require.NoError(p.t, err)
	return b
}

// hostAllocator is an optional interface of a device kind whose copies wait for the device if other host
// memory is valid on a stream.
type hostAllocator interface {
	AllocHost(size int, stream device.Stream) (device.Buffer, error)
}

// mostPageLocked bounds the page-locked memory of a copy.
const mostPageLocked = 16 << 20

// pageLocked returns n bytes of host memory valid on s if the tests are to use such memory for their
// copies. The caller keeps it reachable while it uses the bytes.
func (p allocator) pageLocked(n int, s device.Stream) (b device.Buffer, ok bool) {
	p.t.Helper()
	k := p.streams
	if k == nil {
		k = p.kind
	}
	if h, has := k.(hostAllocator); has && p.strict != nil && s != nil && n > 0 && n <= mostPageLocked {
		var err error
		b, err = h.AllocHost(n, s)
		require.NoError(p.t, err)
		return b, true
	}
	return b, false
}

// hostMemory returns n bytes of host memory valid on s, a stream of p.streams. Copies between it and
// devices do not wait. It stays reachable until the end of the test.
func (p allocator) hostMemory(n int, s device.Stream) device.Buffer {
	p.t.Helper()
	h, ok := p.streams.(hostAllocator)
	if !ok {
		return device.Bytes(make([]byte, n)).WithStream(s)
	}
	b, err := h.AllocHost(n, s)
	require.NoError(p.t, err)
	p.t.Cleanup(func() { runtime.KeepAlive(b) })
	return b
}

func (p allocator) stream() device.Stream {
	p.t.Helper()
	k, d := p.kind, p.device
	if p.streams != nil {
		k, d = p.streams, p.streamDevice
	}
	s, err := k.NewStream(d)
	require.NoError(p.t, err)
	return s
}

// allocWith returns new memory as alloc does, to which data is copied on the memory's stream. The
// caller must not change data later, since the stream may read it later.
func (p allocator) allocWith(data []byte) device.Buffer {
	p.t.Helper()
	b := p.alloc(len(data))
	p.write(b, data)
	return b
}

// write enqueues a copy of data to b on b's stream; without a stream it copies at once. The caller
// must not change data later, since the stream may read it later.
func (p allocator) write(b device.Buffer, data []byte) {
	p.t.Helper()
	if p.strict != nil && b.Stream() != nil && len(data) <= mostPageLocked {
		for range p.strict.LateSource {
			p.poison(b)
		}
	}
	p.writeOnce(b, data)
}

func (p allocator) writeOnce(b device.Buffer, data []byte) {
	p.t.Helper()
	host, locked := p.pageLocked(len(data), b.Stream())
	if locked {
		slice, _ := host.Contiguous()
		copy(slice, data)
	} else {
		host = device.Bytes(data)
	}
	p.copy(b, host)
}

// poison overwrites b, on b's stream if it has one, with a byte that tensors of tests do not
// contain.
func (p allocator) poison(b device.Buffer) {
	p.t.Helper()
	p.writeOnce(b, poisonBytes.bytes(b.Len()))
}

// read waits for the work on b's stream and returns a copy of the contents of b.
func (p allocator) read(b device.Buffer) []byte {
	p.t.Helper()
	data := p.snapshot(b)
	if s := b.Stream(); s != nil {
		require.NoError(p.t, s.Synchronize(p.t.Context()))
	}
	return data
}

// want waits for the work on b's stream, and fails the test unless the contents of b equal data.
// what names the contents in the message.
func (p allocator) want(data []byte, b device.Buffer, what string) {
	p.t.Helper()
	if locked, ok := p.pageLocked(b.Len(), b.Stream()); ok {
		p.copy(locked, b)
		require.NoError(p.t, b.Stream().Synchronize(p.t.Context()))
		seen, _ := locked.Contiguous()
		wantBytes(p.t, data, seen, what)
		runtime.KeepAlive(locked)
		return
	}
	seen := getBuffer(b.Len())
	p.copy(device.Bytes(*seen), b)
	if s := b.Stream(); s != nil {
		require.NoError(p.t, s.Synchronize(p.t.Context()))
	}
	wantBytes(p.t, data, *seen, what)
	putBuffer(seen)
}

// snapshot enqueues a copy of b on b's stream and returns the slice that the stream copies to. The
// contents of the slice are valid once the stream has done the copy; without a stream they are
// valid at once.
func (p allocator) snapshot(b device.Buffer) []byte {
	p.t.Helper()
	host, ok := p.pageLocked(b.Len(), b.Stream())
	if !ok {
		host = device.Bytes(make([]byte, b.Len()))
	}
	p.t.Cleanup(func() { runtime.KeepAlive(host) })
	p.copy(host, b)
	data, _ := host.Contiguous()
	return data
}

// copy enqueues a copy of src to dst on the stream of dst or, if it has none, of src. If p is for
// host memory that is valid on a stream of another device, the bytes pass through memory of that
// device.
func (p allocator) copy(dst, src device.Buffer) {
	p.t.Helper()
	if p.streams == nil {
		require.NoError(p.t, p.kind.Copy(dst, src))
		return
	}
	s := dst.Stream()
	if s == nil {
		s = src.Stream()
	}
	via, err := p.streams.Alloc(p.streamDevice, src.Len(), s)
	require.NoError(p.t, err)
	require.NoError(p.t, p.streams.Copy(via, src))
	require.NoError(p.t, p.streams.Copy(dst, via))
}

// yield lets other goroutines run for a short time by calling runtime.Gosched repeatedly. An
// operation that a channel carries out too early then probably happens before the test continues.
func yield() {
	for range 200 {
		runtime.Gosched()
	}
}

// Allocating memory is slow under the race detector, which clears the shadow of every byte.
// Contents are therefore slices of two read-only pieces of memory that all tests share, and
// buffers for comparisons are pooled.

// poisonByte does not occur in the results of random.
const poisonByte = 0xee

// period is a prime, so that bytes at a wrong offset differ.
const period = 4099

var (
	pattern     = contents{period: patternPeriod()}
	poisonBytes = contents{period: []byte{poisonByte}}
)

// contents generates bytes by repeating period.
type contents struct {
	period []byte

	mu   sync.Mutex
	have []byte
}

// bytes returns the first n bytes of the repeated period. The result shares memory with the results
// of other calls and must not be modified.
func (c *contents) bytes(n int) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.have) < n {
		c.have = bytes.Repeat(c.period, max(n, 2*len(c.have))/len(c.period)+1)
	}
	return c.have[:n:n]
}

func patternPeriod() []byte {
	p := make([]byte, period)
	r := rand.New(rand.NewPCG(1, 1))
	for i := range p {
		p[i] = byte(r.UintN(poisonByte))
	}
	return p
}

// random returns n bytes of a fixed pattern, from an offset that depends on seed. They do not
// contain poisonByte. The result shares memory with the results of other calls and must not be
// modified.
func random(n int, seed uint64) []byte {
	const atCall = 1009 // successive seeds begin at distant offsets
	shift := int(seed % period * atCall % period)
	return pattern.bytes(shift + n)[shift:]
}

// buffers pools memory for comparisons.
var buffers sync.Pool

// getBuffer returns n zero bytes, from the pool if its next buffer is large enough. The caller
// returns them to the pool with putBuffer.
func getBuffer(n int) *[]byte {
	if p, ok := buffers.Get().(*[]byte); ok && cap(*p) >= n {
		*p = (*p)[:n]
		clear(*p)
		return p
	}
	p := make([]byte, n)
	return &p
}

func putBuffer(p *[]byte) { buffers.Put(p) }

// wantBytes fails the test unless want and got are equal. The message has the first byte that
// differs, and not the whole contents; what names the contents.
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
