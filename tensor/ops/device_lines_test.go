package ops_test

import (
	"context"
	"encoding/binary"
	"math"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// deviceFunctions are the functions that the kernels have.
var deviceFunctions = map[ops.Function]func(x float64) float64{
	ops.FunctionExp: math.Exp, ops.FunctionLog: math.Log, ops.FunctionSqrt: math.Sqrt, ops.FunctionTanh: math.Tanh,
	ops.FunctionSigmoid: func(x float64) float64 { return 1 / (1 + math.Exp(-x)) },
	ops.FunctionRelu:    func(x float64) float64 { return max(x, 0) },
}

func (k kernels) Map(_ context.Context, f ops.Function, dst, x *tensor.Tensor) error {
	of := deviceFunctions[f]
	if of == nil {
		return &tensor.DeviceError{Device: dst.Device()}
	}
	return k.run(func(to *float32, from []float32) { *to = float32(of(float64(from[0]))) }, dst, x)
}

func (k kernels) ReluBackward(_ context.Context, dst, grad, out *tensor.Tensor) error {
	return k.run(func(to *float32, from []float32) {
		if *to = from[0]; from[1] <= 0 {
			*to = 0
		}
	}, dst, grad, out)
}

// inLine returns the number of the element of t that has the index k in dimension dim, and otherwise those of
// element i of a tensor of the given shape, which may differ from that of t in dim.
func inLine(t *tensor.Tensor, shape []int, i, dim, k int) int {
	at, step := 0, 1
	for d := len(shape) - 1; d >= 0; d-- {
		index := i % shape[d]
		if d == dim {
			index = k
		}
		at, step, i = at+index*step, step*t.Shape()[d], i/shape[d]
	}
	return at
}

func (k kernels) ArgMax(_ context.Context, dst, x *tensor.Tensor, dim int) error {
	return k.launch(func(mem ...[]byte) {
		for i := range dst.Len() {
			best := 0
			for j := range x.Shape()[dim] {
				if deviceElement(mem[1], x, inLine(x, dst.Shape(), i, dim, j)) > deviceElement(mem[1], x, inLine(x, dst.Shape(), i, dim, best)) {
					best = j
				}
			}
			binary.LittleEndian.PutUint64(mem[0][position(dst, i):], uint64(best))
		}
	}, dst, x)
}

func (k kernels) Take(_ context.Context, dst, x, indices *tensor.Tensor, dim int, ignored int64) error {
	return k.launch(func(mem ...[]byte) {
		for i := range dst.Len() {
			v, index := float32(math.NaN()), int64(binary.LittleEndian.Uint64(mem[2][position(indices, i):]))
			if index == ignored {
				v = 0
			} else if index >= 0 && index < int64(x.Shape()[dim]) {
				v = deviceElement(mem[1], x, inLine(x, dst.Shape(), i, dim, int(index)))
			}
			setDeviceElement(mem[0], dst, i, v)
		}
	}, dst, x, indices)
}

func (k kernels) Put(_ context.Context, dst, x, indices *tensor.Tensor, dim int) error {
	return k.launch(func(mem ...[]byte) {
		for i := range dst.Len() {
			line := inLine(indices, dst.Shape(), i, dim, 0)
			v := float32(0)
			if index := int64(binary.LittleEndian.Uint64(mem[2][position(indices, line):])); inLine(dst, dst.Shape(), i, dim, int(index)) == i {
				v = deviceElement(mem[1], x, line)
			}
			setDeviceElement(mem[0], dst, i, v)
		}
	}, dst, x, indices)
}
