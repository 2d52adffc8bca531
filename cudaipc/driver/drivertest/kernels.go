package drivertest

import (
	"encoding/binary"
	"math"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
)

var kernelCases = []testCase{
	{"Add", 1, launchAdd},
	{"ArgumentsAreCopied", 1, argumentsAreCopied},
	{"Errors", 1, kernelErrors},
}

// pack returns the arguments of a kernel whose parameters have 64 bits each.
func pack(values ...uint64) []byte {
	var args []byte
	for _, v := range values {
		args = binary.LittleEndian.AppendUint64(args, v)
	}
	return args
}

// fillFloat enqueues that n words at p are set to v.
func (f *fixture) fillFloat(dev int, p driver.Ptr, v float32, n int, s driver.Stream) {
	f.Helper()
	f.fill(dev, p, math.Float32bits(v), n, s)
}

// launchAdd checks that a kernel gets all its arguments, runs on every element, and only on
// those.
func launchAdd(f *fixture) {
	const n, threads = 1000, 128
	for dev := range f.contexts {
		add, s := f.function(dev, "add_f32"), f.stream(dev)
		out, a, b := f.alloc(dev, 8*n), f.alloc(dev, 4*n), f.alloc(dev, 4*n)
		f.fillFloat(dev, out, -1, 2*n, s)
		f.fillFloat(dev, a, 1.5, n, s)
		f.fillFloat(dev, b, 2.25, n, s)
		args := pack(uint64(out), uint64(a), uint64(b), n, math.Float64bits(2))
		grid, block := driver.Dim{X: (n + threads - 1) / threads, Y: 1, Z: 1}, driver.Dim{X: threads, Y: 1, Z: 1}
		f.on(dev, func() { require.NoError(f, f.Launch(add, grid, block, 0, s, args)) })
		f.wantWords(dev, out, math.Float32bits(1.5+2*2.25), n, s)
		f.wantWords(dev, out+4*n, math.Float32bits(-1), n, s)
	}
}

// argumentsAreCopied checks that the caller may change the arguments when Launch has returned,
// though the kernel has not begun.
func argumentsAreCopied(f *fixture) {
	const n = 32
	add, s := f.function(0, "add_f32"), f.stream(0)
	out, a := f.alloc(0, 4*n), f.alloc(0, 4*n)
	f.fillFloat(0, a, 2, n, s)
	f.sleep(0, late, s)
	args := pack(uint64(out), uint64(a), uint64(a), n, math.Float64bits(1))
	f.on(0, func() {
		require.NoError(f, f.Launch(add, driver.Dim{X: 1, Y: 1, Z: 1}, driver.Dim{X: n, Y: 1, Z: 1}, 0, s, args))
	})
	clear(args)
	f.wantWords(0, out, math.Float32bits(4), n, s)
}

func kernelErrors(f *fixture) {
	s, one := f.stream(0), driver.Dim{X: 1, Y: 1, Z: 1}
	f.on(0, func() {
		for _, image := range []string{"", "no kernel", "\x00"} {
			_, err := f.LoadModule([]byte(image))
			f.wantError(err)
		}
		m, err := f.LoadModule(kernels)
		require.NoError(f, err)
		for _, name := range []string{"missing", "", "add"} {
			_, err = f.Function(m, name)
			f.wantError(err, driver.ResultNotFound, driver.ResultInvalidValue)
		}
		require.NoError(f, f.UnloadModule(m))
		args := pack(0)
		f.wantError(f.Launch(f.sleeps[0], driver.Dim{}, one, 0, s, args), driver.ResultInvalidValue)
		f.wantError(f.Launch(f.sleeps[0], one, driver.Dim{}, 0, s, args), driver.ResultInvalidValue)
		f.wantError(f.Launch(f.sleeps[0], one, driver.Dim{X: 1 << 20, Y: 1, Z: 1}, 0, s, args), driver.ResultInvalidValue)
		f.wantError(f.Launch(f.sleeps[0], one, one, math.MinInt, s, args), driver.ResultInvalidValue)
		f.wantError(f.Launch(0, one, one, 0, s, args), driver.ResultInvalidHandle, driver.ResultInvalidValue)
	})
	f.sync(0, s)
}
