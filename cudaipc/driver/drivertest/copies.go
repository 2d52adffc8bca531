package drivertest

import (
	"math/rand/v2"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
)

var copyCases = []testCase{
	{"Fill", 1, fillWords},
	{"RoundTrip", 1, copyRoundTrip},
	{"AcrossDevices", 2, copyAcrossDevices},
	{"Pageable", 1, copyPageable},
	{"Errors", 1, copyErrors},
}

// random returns page-locked memory with random bytes.
func (f *fixture) random(size int) []byte {
	f.Helper()
	p := f.host(size)
	for i := range p {
		p[i] = byte(rand.Uint32())
	}
	return p
}

// fillWords checks that Fill sets the words of its range and no others.
func fillWords(f *fixture) {
	const words, from, to = 1000, 17, 900
	s, p := f.stream(0), f.alloc(0, 4*words)
	f.fill(0, p, 0x01020304, words, s)
	f.fill(0, p+4*from, 0xfffefdfc, to-from, s)
	f.wantWords(0, p, 0x01020304, from, s)
	f.wantWords(0, p+4*from, 0xfffefdfc, to-from, s)
	f.wantWords(0, p+4*to, 0x01020304, words-to, s)
}

// copyRoundTrip checks that copies from the host to a device, within it, and back keep all
// bytes, at any offset.
func copyRoundTrip(f *fixture) {
	const size, to, from = 100_003, 13, 1021
	for dev := range f.contexts {
		s, p, q := f.stream(dev), f.alloc(dev, size+to), f.alloc(dev, size+from)
		want, got := f.random(size), f.host(size)
		f.copy(dev, p+to, driver.HostPtr(want), size, s)
		f.copy(dev, q+from, p+to, size, s)
		f.copy(dev, driver.HostPtr(got), q+from, size, s)
		f.sync(dev, s)
		require.Equal(f, want, got)
	}
}

// copyAcrossDevices checks that a copy between two devices may be enqueued on a stream of
// either.
func copyAcrossDevices(f *fixture) {
	const size = 100_003
	for dev := range 2 {
		for _, worker := range []int{dev, 1 - dev} {
			s, p, q := f.stream(worker), f.alloc(dev, size), f.alloc(1-dev, size)
			want, got := f.random(size), f.host(size)
			f.copy(worker, p, driver.HostPtr(want), size, s)
			f.copy(worker, q, p, size, s)
			f.copy(worker, driver.HostPtr(got), q, size, s)
			f.sync(worker, s)
			require.Equal(f, want, got, "from device %d, with a stream of device %d", dev, worker)
		}
	}
}

// copyPageable checks that memory that the driver does not know may be copied, too.
func copyPageable(f *fixture) {
	const size = 10_000
	s, p := f.stream(0), f.alloc(0, size)
	want, got := make([]byte, size), make([]byte, size)
	for i := range want {
		want[i] = byte(i * i)
	}
	f.copy(0, p, driver.HostPtr(want), size, s)
	f.copy(0, driver.HostPtr(got), p, size, s)
	f.sync(0, s)
	require.Equal(f, want, got)
}

func copyErrors(f *fixture) {
	const size = 4096
	s, p, q := f.stream(0), f.alloc(0, size), f.alloc(0, size)
	f.on(0, func() {
		f.wantError(f.Copy(p, q, -1, s), driver.ResultInvalidValue)
		f.wantError(f.Copy(0, q, size, s), driver.ResultInvalidValue)
		f.wantError(f.Fill(0, 1, 1, s), driver.ResultInvalidValue)
		f.wantError(f.Fill(p, 1, -1, s), driver.ResultInvalidValue)
		f.wantError(f.Fill(p+1, 1, 1, s), driver.ResultInvalidValue)
	})
}
