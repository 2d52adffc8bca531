package cudaipc

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// references are the functions of the kernel map, in the order of their numbers, and how many units in
// the last place of f64 the results of the kernel may differ.
var references = []struct {
	name  string
	f     func(x float64) float64
	units uint64
}{
	{"exp", exp, 3},
	{"log", log, 3},
	{"sqrt", math.Sqrt, 0},
	{"tanh", math.Tanh, 3},
	{"sigmoid", func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }, 3},
	{"relu", func(x float64) float64 { return max(x, 0) }, 0},
}

// exp is math.Exp, which overflows on amd64 for some arguments whose exponential is finite.
func exp(x float64) float64 {
	if x > 709 {
		return math.Exp(x-1) * math.E
	}
	return math.Exp(x)
}

// log is math.Log, which is wrong on amd64 for numbers below 2^-1022.
func log(x float64) float64 {
	if x > 0 && x < 0x1p-1022 {
		return math.Log(x*0x1p60) - 60*math.Ln2
	}
	return math.Log(x)
}

// arguments returns numbers of all sizes, and those at which the kernel map changes its way.
func arguments() []float64 {
	all := []float64{
		0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.NaN(), 1, -1, 0.5, math.Sqrt2, math.Sqrt2 / 2, math.E,
		math.SmallestNonzeroFloat64, -math.SmallestNonzeroFloat64, 0x1p-1022, 0x1p-1023, math.MaxFloat64, -math.MaxFloat64,
		709.78, 709.79, 710, 711, -708.4, -745.1, -745.2, -746, -747, 22, 21.99, 44, -44, math.Ln2 / 2, -math.Ln2 / 2, math.Ln2 / 4,
		88.7, 88.8, -87.4, -103.9, -104, math.MaxFloat32, math.SmallestNonzeroFloat32,
	}
	r := rand.New(rand.NewPCG(21, 22))
	for range 100 {
		all = append(all, r.NormFloat64(), r.NormFloat64()*20, r.Float64()*1500-750, 1+r.NormFloat64()/1000,
			math.Exp(r.Float64()*1400-700), r.NormFloat64()*1e-9)
	}
	return all
}

// The text of the kernel map computes the functions as precisely as its comment promises.
func TestPTXFunctions(t *testing.T) {
	kernel := ptxKernel(t, "map")
	for _, size := range []int{4, 8} {
		xs := floatsOf(size, floatBytes(size, arguments()...)) // rounded
		for number, c := range references {
			memory := append(floatBytes(size, xs...), make([]byte, size*len(xs))...)
			dst := uint64(memoryBase + size*len(xs))
			require.NoError(t, kernel.run(memory, blocksFor(len(xs)), maxThreads,
				[]uint64{dst, memoryBase, uint64(len(xs)), uint64(size), uint64(number)}))
			got := floatsOf(size, memory[size*len(xs):])
			most := uint64(0)
			for i, x := range xs {
				want := floatsOf(size, floatBytes(size, c.f(x)))[0]
				apart := unitsApart(size, want, got[i])
				most = max(most, apart)
				limit := c.units
				if size == 4 {
					limit = min(limit, 1)
				}
				require.LessOrEqual(t, apart, limit, "%s of %g with %d bytes: %g, want %g", c.name, x, size, got[i], want)
			}
			t.Logf("%s with %d bytes: at most %d units apart", c.name, size, most)
		}
	}
}

// The simulated kernels for lines, and those for functions, do what their text does.
func TestPTXTwins(t *testing.T) {
	f, r := newFixture(t, Options{}), rand.New(rand.NewPCG(23, 24))
	s := f.stream(f.zero)
	const part = 4096 // bytes of each operand
	for _, c := range []struct {
		kernel string
		n      uint64   // threads that have work
		length uint64   // of a line, beyond which indices are wrong
		more   []uint64 // parameters after n and the size
	}{
		{"relu_backward", 200, 1, nil},
		{"argmax", 12, 5, []uint64{5, 1}},
		{"argmax", 12, 7, []uint64{7, 4}},
		{"take", 60, 4, []uint64{4, 5, 80, 20, 4, 2}},
		{"take", 60, 3, []uint64{3, 60, 0, 8, 0, 1 << 40}},
		{"take", 6, 1, []uint64{1, 1, 0, 0, 0, math.MaxUint64}},
		{"put", 60, 3, []uint64{3, 1}},
		{"put", 60, 3, []uint64{3, 4}},
	} {
		for _, size := range []int{4, 8} {
			values, indices := make([]float64, part/size), make([]byte, 0, part)
			for i := range values {
				values[i] = []float64{r.NormFloat64(), r.NormFloat64(), float64(r.IntN(3)), math.NaN(), math.Inf(1), math.Inf(-1)}[r.IntN(6)]
			}
			for len(indices) < part {
				indices = binary.LittleEndian.AppendUint64(indices, uint64(r.IntN(int(c.length)+2)-1))
			}
			memory := append(make([]byte, part), floatBytes(size, values...)...)
			if c.kernel == "relu_backward" {
				memory = append(memory, floatBytes(size, values...)...)
				r.Shuffle(part/size, func(i, k int) {
					a, b := memory[2*part+i*size:][:size], memory[2*part+k*size:][:size]
					for j := range a {
						a[j], b[j] = b[j], a[j]
					}
				})
			} else {
				memory = append(memory, indices...)
			}
			params := func(base uint64) []uint64 {
				out := []uint64{base, base + part}
				if c.kernel != "argmax" {
					out = append(out, base+2*part)
				}
				return append(append(out, c.n, uint64(size)), c.more...)
			}
			there := f.alloc(len(memory), s)
			f.write(there, memory)
			_, at, err := f.memoryOf(there)
			require.NoError(t, err)
			blocks := blocksFor(int(c.n))
			require.NoError(t, f.gpus[0].enter())
			err = f.gpus[0].launch(s.handle, c.kernel, blocks, maxThreads, params(uint64(at))...)
			f.gpus[0].leave()
			require.NoError(t, err)
			require.NoError(t, ptxKernel(t, c.kernel).run(memory, blocks, maxThreads, params(memoryBase)))
			require.Equal(t, memory[:part], f.read(there)[:part], "%s %v with %d bytes", c.kernel, c.more, size)
			require.NotEqual(t, make([]byte, part), memory[:part], c.kernel)
		}
	}
}

// Operators that are computed by functions and lines, on one or two tensors.
var functional = map[string]operator{
	"exp": func(ctx context.Context, e *ops.Engine, x, _ *tensor.Tensor) (*tensor.Tensor, error) {
		return e.Exp(ctx, x)
	},
	"log": func(ctx context.Context, e *ops.Engine, _, y *tensor.Tensor) (*tensor.Tensor, error) {
		return e.Log(ctx, y)
	},
	"tanh": func(ctx context.Context, e *ops.Engine, x, _ *tensor.Tensor) (*tensor.Tensor, error) {
		return e.Tanh(ctx, x)
	},
	"sigmoid": func(ctx context.Context, e *ops.Engine, x, _ *tensor.Tensor) (*tensor.Tensor, error) {
		return e.Sigmoid(ctx, x)
	},
	"relu": func(ctx context.Context, e *ops.Engine, x, _ *tensor.Tensor) (*tensor.Tensor, error) {
		return e.Relu(ctx, x)
	},
	"gradient of relu": func(ctx context.Context, e *ops.Engine, x, y *tensor.Tensor) (*tensor.Tensor, error) {
		return e.ReluBackward(ctx, y, x)
	},
	"gradient of tanh": func(ctx context.Context, e *ops.Engine, x, y *tensor.Tensor) (*tensor.Tensor, error) {
		return e.TanhBackward(ctx, x, y)
	},
	"gradient of sigmoid": func(ctx context.Context, e *ops.Engine, x, y *tensor.Tensor) (*tensor.Tensor, error) {
		return e.SigmoidBackward(ctx, x, y)
	},
}

func TestFunctions(t *testing.T) {
	f, r, host := newFixture(t, Options{}), rand.New(rand.NewPCG(25, 26)), &ops.Engine{}
	e, s := f.engine(), f.stream(f.zero)
	ctx := device.WithStream(t.Context(), s)
	for _, d := range []tensor.DType{tensor.F32, tensor.F64} {
		for _, shape := range [][]int{{7}, {3, 5}, {300, 3}, {0, 2}} {
			for _, layout := range layouts {
				x, y := random(t, r, d, layout, shape...), nonzero(t, random(t, r, d, "contiguous", shape...))
				a, b := f.send(x, s), f.send(y, s)
				for name, op := range functional {
					name = fmt.Sprint(name, " ", d, " ", shape, " ", layout)
					want, err := op(ctx, host, x, y)
					require.NoError(t, err, name)
					got, err := op(ctx, e, a, b)
					require.NoError(t, err, name)
					f.requireEqual(want, got, 1e-6, name)
				}
			}
		}
	}
}

// Maxima, their indices, and softmax along each dimension are those of the host, also for NaN and infinities.
func TestLines(t *testing.T) {
	f, r, host := newFixture(t, Options{}), rand.New(rand.NewPCG(27, 28)), &ops.Engine{}
	e, s := f.engine(), f.stream(f.zero)
	ctx := device.WithStream(t.Context(), s)
	for _, d := range []tensor.DType{tensor.F32, tensor.F64} {
		for _, shape := range [][]int{{5}, {3, 4}, {2, 3, 4}, {300, 3}} {
			for _, layout := range layouts {
				x := random(t, r, d, layout, shape...)
				a := f.send(x, s)
				for dim := range shape {
					name := fmt.Sprint(d, shape, layout, dim)
					top, at, err := host.MaxDim(ctx, x, dim, dim == 0)
					require.NoError(t, err)
					gotTop, gotAt, err := e.MaxDim(ctx, a, dim, dim == 0)
					require.NoError(t, err)
					f.requireEqual(top, gotTop, 0, name)
					f.requireEqual(at, gotAt, 0, name)
					for _, softmax := range []func(e *ops.Engine, x *tensor.Tensor) (*tensor.Tensor, error){
						func(e *ops.Engine, x *tensor.Tensor) (*tensor.Tensor, error) { return e.Softmax(ctx, x, dim) },
						func(e *ops.Engine, x *tensor.Tensor) (*tensor.Tensor, error) { return e.LogSoftmax(ctx, x, dim) },
					} {
						want, err := softmax(host, x)
						require.NoError(t, err)
						got, err := softmax(e, a)
						require.NoError(t, err)
						f.requireEqual(want, got, 1e-5, name)
					}
				}
			}
		}
	}
	inf, nan := math.Inf(1), math.NaN()
	x, err := tensor.FromSlice([]float64{1, nan, 3, nan, inf, 2, inf, 1, -inf, -inf, -inf, -inf, -inf, 1, -inf, 1}, 4, 4)
	require.NoError(t, err)
	a := f.send(x, s)
	_, at, err := e.MaxDim(ctx, a, -1, false)
	require.NoError(t, err)
	require.Equal(t, []float64{1, 0, 0, 1}, values(t, f.fetch(at)))
	p, err := e.LogSoftmax(ctx, a, 1)
	require.NoError(t, err)
	want, err := host.LogSoftmax(ctx, x, 1)
	require.NoError(t, err)
	for i, v := range values(t, f.fetch(p)) {
		require.LessOrEqual(t, unitsApart(8, values(t, want)[i], v), uint64(1), "element %d: %g", i, v)
	}
}

// A target that is no class gives NaN, because the host does not read it, and an ignored one counts nothing. A
// class whose logarithmic probability is infinite does not spoil the loss of others.
func TestLossesOfTargets(t *testing.T) {
	f := newFixture(t, Options{})
	e, s := f.engine(), f.stream(f.zero)
	ctx := device.WithStream(t.Context(), s)
	logp, err := tensor.FromSlice([]float32{-1, float32(math.Inf(-1)), -3, -4, -5, -6}, 3, 2)
	require.NoError(t, err)
	ignored := int64(1)
	for _, c := range []struct {
		targets []int64
		loss    float64
		ignore  *int64
	}{
		{[]int64{0, 1, 0}, 1 + 4 + 5, nil}, {[]int64{0, -100, 1}, 1 + 6, nil}, {[]int64{0, 1, 1}, 1, &ignored},
		{[]int64{0, 2, 1}, math.NaN(), nil}, {[]int64{0, -1, 1}, math.NaN(), nil}, {[]int64{1, 1, 1}, math.Inf(1), nil},
	} {
		target, err := tensor.FromSlice(c.targets, 3)
		require.NoError(t, err)
		loss, _, err := e.NLLLoss(ctx, f.send(logp, s), f.send(target, s), nil, ops.NLLOptions{Reduction: ops.ReductionSum, IgnoreIndex: c.ignore})
		require.NoError(t, err)
		require.Zero(t, unitsApart(4, c.loss, values(t, f.fetch(loss))[0]), c)
	}
}
