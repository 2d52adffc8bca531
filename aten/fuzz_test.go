package aten_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/aten"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// source generates arguments from bytes.
type source struct{ data []byte }

func (s *source) byte() int {
	if len(s.data) == 0 {
		return 0
	}
	b := s.data[0]
	s.data = s.data[1:]
	return int(b)
}

// number consumes one byte and returns a number that depends on it: mostly a small one, sometimes
// an extreme one.
func (s *source) number() int64 {
	switch b := s.byte(); {
	case b < 200:
		return int64(b%9) - 3
	case b < 230:
		return int64(1) << (b % 63)
	case b < 240:
		return math.MinInt64
	default:
		return math.MaxInt64
	}
}

func (s *source) float() float64 {
	all := []float64{0, 1, -1, 0.5, 2.5, 1e300, math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1)}
	return all[s.byte()%len(all)]
}

// tensor consumes bytes and returns a tensor that depends on them: one with few elements, one with
// many elements that share memory, or one of a large shape without elements.
func (s *source) tensor() *tensor.Tensor {
	d := allDTypes[s.byte()%len(allDTypes)]
	var shape []int
	n := 1
	for range s.byte() % 5 {
		shape = append(shape, s.byte()%4)
		n *= shape[len(shape)-1]
	}
	x := must(tensor.Zeros(d, shape...))
	p := must(x.Storage().Bytes())
	for i := range p {
		p[i] = byte(s.byte())
		if d == tensor.Bool {
			p[i] &= 1
		}
	}
	switch how := s.byte() % 8; {
	case how == 0 && len(shape) > 1:
		x = must(x.Transpose(0, len(shape)-1))
	case how == 1:
		if y, err := x.Expand(append([]int{1 << (s.byte() % 50)}, shape...)...); err == nil {
			x = y
		}
	case how == 2 && n == 0:
		if y, err := tensor.Zeros(d, append([]int{1 << (s.byte() % 50)}, shape...)...); err == nil {
			x = y
		}
	case how == 3 && len(shape) > 0 && shape[0] > 1:
		x = must(x.Slice(0, 1, shape[0], 2))
	}
	return x
}

func (s *source) sparse() aten.Value {
	n, sparse := s.byte()%4, s.byte()%3
	indices := must(tensor.Zeros(tensor.I64, sparse, n))
	at := must(tensor.MutableData[int64](indices))
	for i := range at {
		at[i] = int64(s.byte() % 3)
	}
	shape := make([]int, sparse)
	for i := range shape {
		shape[i] = 3 << (s.byte() % 40)
	}
	x, err := tensor.NewSparse(indices, must(tensor.Zeros(allDTypes[s.byte()%len(allDTypes)], n)), shape...)
	if err != nil {
		return nil
	}
	return x
}

func (s *source) value() aten.Value {
	switch s.byte() % 16 {
	case 0:
		return nil
	case 1:
		return s.byte()%2 == 0
	case 2, 3:
		return s.number()
	case 4:
		return s.float()
	case 5:
		return "f32"
	case 6:
		list := make([]*tensor.Tensor, s.byte()%4)
		for i := range list {
			list[i] = s.tensor()
		}
		return list
	case 7, 8:
		list := make([]int64, s.byte()%5)
		for i := range list {
			list[i] = s.number()
		}
		return list
	case 9, 10:
		return s.sparse()
	default:
		return s.tensor()
	}
}

// valueFor consumes bytes and returns a value that depends on them. Mostly it has type t, so that
// calls reach the kernels.
func (s *source) valueFor(t aten.Type) aten.Value {
	for range 6 {
		v := s.value()
		switch v.(type) {
		case *tensor.Tensor, *tensor.Sparse:
			if t.Kind == aten.Tensor && !t.List {
				return v
			}
		case []*tensor.Tensor:
			if t.Kind == aten.Tensor && t.List {
				return v
			}
		case int64:
			if !t.List && t.Kind != aten.Tensor {
				return v
			}
		case []int64:
			if t.List && t.Kind == aten.Int {
				return v
			}
		}
		if s.byte() > 220 {
			return v
		}
	}
	if t.Kind == aten.Tensor && !t.List {
		return s.tensor()
	}
	return s.number()
}

// FuzzCall calls any operator with any arguments. The call must return as many results as the
// schema has or an error of a documented type, and must not modify an argument.
func FuzzCall(f *testing.F) {
	table := aten.Builtin(&ops.Engine{MaxBytes: 1 << 16})
	names := table.Names()
	for i := range names {
		for seed := range byte(8) {
			data := []byte{byte(i)}
			for j := range 120 {
				data = append(data, byte(j*j*31)*seed+byte(j))
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s := &source{data: data}
		op := must(table.Lookup(names[s.byte()%len(names)]))[0]
		var args values
		for _, a := range op.Schema.Args[:len(op.Schema.Args)-s.byte()%2*min(1, len(op.Schema.Args)-1)] {
			if a.KeywordOnly {
				break
			}
			args = append(args, s.valueFor(a.Type))
		}
		before := cloneTensors(args)
		out, err := table.Call(t.Context(), op.Schema.FullName(), args, nil)
		if err != nil {
			requireTyped(t, err)
		} else {
			require.Len(t, out, len(op.Schema.Results))
		}
		for i, v := range before {
			if v != nil {
				require.True(t, must(tensor.Equal(v, args[i].(*tensor.Tensor))), "argument %d has changed", i)
			}
		}
	})
}

// cloneTensors returns a slice as long as args, with a copy of each tensor of fewer than 1000
// elements and nil for each other argument.
func cloneTensors(args values) []*tensor.Tensor {
	out := make([]*tensor.Tensor, len(args))
	for i, v := range args {
		if x, ok := v.(*tensor.Tensor); ok && x.Len() < 1000 {
			out[i] = must(x.Clone())
		}
	}
	return out
}

func requireTyped(t *testing.T, err error) {
	t.Helper()
	switch err.(type) {
	case *aten.CountError, *aten.ArgumentError, *aten.OverloadError, *aten.KernelError:
	default:
		require.Fail(t, "an error of an undocumented type", "%T: %v", err, err)
	}
}
