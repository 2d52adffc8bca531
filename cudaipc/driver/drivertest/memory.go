package drivertest

import (
	"math"
	"syscall"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
)

var memoryCases = []testCase{
	{"Range", 1, addressRange},
	{"BufferID", 1, bufferID},
	{"Attributes", 1, pointerAttributes},
	{"Device", 1, pointerDevice},
	{"Info", 1, memInfo},
	{"Errors", 1, memoryErrors},
}

func addressRange(f *fixture) {
	const size = 1 << 16
	p := f.alloc(0, size)
	f.alloc(0, size)
	f.on(0, func() {
		for _, offset := range []driver.Ptr{0, 1, size / 2, size - 1} {
			base, n, err := f.AddressRange(p + offset)
			require.NoError(f, err)
			require.Equal(f, p, base)
			require.Equal(f, size, n)
		}
	})
}

// bufferID checks that the identity of an allocation is that of all its addresses, and is never
// used again.
func bufferID(f *fixture) {
	id := func(p driver.Ptr) int64 {
		v, err := f.PointerAttribute(driver.PointerBufferID, p)
		require.NoError(f, err)
		return v
	}
	const size = 4096
	p := f.alloc(0, size)
	require.Equal(f, id(p), id(p+size-1))
	seen := map[int64]bool{id(p): true}
	f.on(0, func() {
		for range 10 {
			q, err := f.Alloc(size) // often at the address of the one before
			require.NoError(f, err)
			require.NotContains(f, seen, id(q))
			seen[id(q)] = true
			require.NoError(f, f.Free(q))
		}
	})
}

func pointerAttributes(f *fixture) {
	p, h := f.alloc(0, 100), f.host(100)
	for _, c := range []struct {
		attribute driver.PointerAttribute
		of        driver.Ptr
		want      int64
	}{
		{driver.PointerMemoryType, p, driver.MemoryTypeDevice},
		{driver.PointerMemoryType, p + 99, driver.MemoryTypeDevice},
		{driver.PointerMemoryType, driver.HostPtr(h), driver.MemoryTypeHost},
		{driver.PointerManaged, p, 0},
		{driver.PointerLegacyIPC, p, 1},
	} {
		v, err := f.PointerAttribute(c.attribute, c.of)
		require.NoError(f, err, "attribute %d", c.attribute)
		require.Equal(f, c.want, v, "attribute %d", c.attribute)
	}
	_, err := f.PointerAttribute(math.MaxInt32, p)
	f.wantError(err, driver.ResultInvalidValue, driver.ResultNotSupported)
}

// pointerDevice checks that the device of an address does not depend on the current context.
func pointerDevice(f *fixture) {
	for dev := range f.contexts {
		p := f.alloc(dev, 100)
		check := func() {
			got, err := f.PointerAttribute(driver.PointerDevice, p+99)
			require.NoError(f, err)
			require.Equal(f, int64(dev), got)
		}
		check()
		for other := range f.contexts {
			f.on(other, check)
			check()
		}
	}
}

func memInfo(f *fixture) {
	for dev := range f.contexts {
		f.on(dev, func() {
			free, total, err := f.MemInfo()
			require.NoError(f, err)
			require.Positive(f, free)
			require.LessOrEqual(f, free, total)
		})
	}
}

func memoryErrors(f *fixture) {
	unknown := driver.Ptr(unsafe.Pointer(new(int)))
	for _, p := range []driver.Ptr{0, unknown} {
		_, err := f.PointerAttribute(driver.PointerDevice, p)
		f.wantError(err, driver.ResultInvalidValue)
	}
	p := f.alloc(0, 100)
	f.on(0, func() {
		_, err := f.Alloc(0)
		f.wantError(err, driver.ResultInvalidValue)
		_, err = f.Alloc(math.MaxInt / 4)
		f.wantError(err, driver.ResultOutOfMemory)
		_, err = f.Alloc(-1)
		f.wantError(err, driver.ResultInvalidValue, driver.ResultOutOfMemory)
		f.wantError(f.Free(unknown), driver.ResultInvalidValue)
		f.wantError(f.Free(p+4), driver.ResultInvalidValue)
		_, _, err = f.AddressRange(unknown)
		f.wantError(err, driver.ResultInvalidValue, driver.ResultNotFound)
	})
}

var hostMemoryCases = []testCase{
	{"PageLocked", 1, pageLocked},
	{"Registered", 1, registered},
	{"Errors", 1, hostMemoryErrors},
}

// pageLocked checks that all contexts can use page-locked memory.
func pageLocked(f *fixture) {
	const words = 1000
	h := f.host(4 * words)
	for i := range h {
		h[i] = byte(i)
	}
	f.hostRoundTrip(h)
}

// registered checks that memory of the operating system is page-locked while it is registered.
func registered(f *fixture) {
	const words = 4 << 10
	h, err := syscall.Mmap(-1, 0, 4*words, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	require.NoError(f, err)
	f.Cleanup(func() { require.NoError(f, syscall.Munmap(h)) })
	for i := range h {
		h[i] = byte(i * i)
	}
	f.on(0, func() {
		require.NoError(f, f.RegisterHost(h))
		f.wantError(f.RegisterHost(h), 712) // already registered
	})
	kind, err := f.PointerAttribute(driver.PointerMemoryType, driver.HostPtr(h)+1)
	require.NoError(f, err)
	require.Equal(f, int64(driver.MemoryTypeHost), kind)
	f.hostRoundTrip(h)
	f.on(0, func() {
		require.NoError(f, f.UnregisterHost(h))
		f.wantError(f.UnregisterHost(h), 713) // not registered
	})
}

// hostRoundTrip copies h, page-locked memory, to each device and back.
func (f *fixture) hostRoundTrip(h []byte) {
	f.Helper()
	for dev := range f.contexts {
		s, p, back := f.stream(dev), f.alloc(dev, len(h)), f.host(len(h))
		f.copy(dev, p, driver.HostPtr(h), len(h), s)
		f.copy(dev, driver.HostPtr(back), p, len(h), s)
		f.sync(dev, s)
		require.Equal(f, h, back)
	}
}

func hostMemoryErrors(f *fixture) {
	onHeap := make([]byte, 100)
	f.on(0, func() {
		_, err := f.AllocHost(0)
		f.wantError(err, driver.ResultInvalidValue)
		_, err = f.AllocHost(-1)
		f.wantError(err, driver.ResultInvalidValue, driver.ResultOutOfMemory)
		f.wantError(f.FreeHost(onHeap), driver.ResultInvalidValue)
		f.wantError(f.RegisterHost(nil), driver.ResultInvalidValue)
		f.wantError(f.UnregisterHost(onHeap))
	})
}
