package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
	"github.com/tensorpipe-go/tensorpipe/tensor/safetensors"
)

// layer is the part of the network on one stage: its parameters, weight of shape [out, in] and bias of
// shape [out]. The hidden layer is followed by relu.
type layer struct {
	weight, bias *autograd.Variable
	refs         []*rref.Ref[*autograd.Variable] // to both parameters
}

// TensorpipeName implements codec.Namer: other workers refer to a layer, but never receive one.
func (*layer) TensorpipeName() string { return "train.layer" }

// shape is the size of a layer.
type shape struct{ in, out int }

// shapeOf returns the size of the layer on a stage of a network with that many hidden units.
func shapeOf(stage string, hidden int) shape {
	if stage == Stage0 {
		return shape{Pixels, hidden}
	}
	return shape{hidden, Classes}
}

// names returns the names in files of the parameters of a stage, and their shapes.
func (s shape) names(stage string) (names []string, shapes [][]int) {
	return []string{stage + ".weight", stage + ".bias"}, [][]int{{s.out, s.in}, {s.out}}
}

// random returns parameters from a uniform distribution between -1/sqrt(in) and 1/sqrt(in). Equal seeds
// give equal parameters.
func (s shape) random(seed uint64, stage string) ([]*tensor.Tensor, error) {
	numbers := rand.New(rand.NewPCG(seed, uint64(slices.Index(Names, stage))))
	bound := 1 / math.Sqrt(float64(s.in))
	_, shapes := s.names(stage)
	var all []*tensor.Tensor
	for _, dims := range shapes {
		n, err := tensor.NumElements(dims)
		if err != nil {
			return nil, err
		}
		values := make([]float32, n)
		for i := range values {
			values[i] = float32((2*numbers.Float64() - 1) * bound)
		}
		t, err := tensor.FromSlice(values, dims...)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

// FileError reports a file of weights that does not fit the network.
type FileError struct{ Path, Reason string }

func (e *FileError) Error() string { return fmt.Sprintf("%s: %s", e.Path, e.Reason) }

// CheckFile checks that the safetensors file at path has the weights of all stages of a network with
// that many hidden units. It reads no weights. The error is a *FileError, one of package safetensors,
// or one of package os.
func CheckFile(path string, hidden int) error {
	for _, stage := range Names[1:] {
		if _, err := readFile(path, stage, shapeOf(stage, hidden), false); err != nil {
			return err
		}
	}
	return nil
}

// readFile returns the parameters of a stage from the file at path, or only checks, if load is false,
// that the file has them.
func readFile(path, stage string, s shape, load bool) (all []*tensor.Tensor, err error) {
	f, err := safetensors.Open(path, safetensors.Options{})
	if pathError := (*os.PathError)(nil); err != nil && !errors.As(err, &pathError) {
		return nil, fmt.Errorf("%s: %w", path, err)
	} else if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	names, shapes := s.names(stage)
	for i, name := range names {
		info, err := f.Info(name)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: %w", path, err)
		case info.DType != "F32" || !slices.Equal(info.Shape, shapes[i]):
			return nil, &FileError{path, fmt.Sprintf("%s is %s%v, want F32%v", name, info.DType, info.Shape, shapes[i])}
		case !load:
			continue
		}
		t, err := f.Tensor(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, t)
	}
	return all, nil
}

// newLayer returns a layer with parameters, which are weight and bias, on the worker and the device of p.
func (p *Part) newLayer(ctx context.Context, parameters []*tensor.Tensor) (*layer, error) {
	l := &layer{}
	for i, to := range []**autograd.Variable{&l.weight, &l.bias} {
		t, err := p.place(ctx, parameters[i])
		if err != nil {
			return nil, err
		}
		x, err := autograd.Parameter(t)
		if err != nil {
			return nil, err
		}
		*to = x
		l.refs = append(l.refs, rref.Own(agent.FromContext(ctx), x))
	}
	return l, nil
}

// params returns references to the parameters.
func (l *layer) params(context.Context, agent.None) ([]*rref.Ref[*autograd.Variable], error) {
	return l.refs, nil
}

// forward returns the output of the hidden layer for images x, of shape [n, in]. The result has the
// shape [n, out].
func (l *layer) forward(ctx context.Context, x *tensor.Tensor) (*autograd.Variable, error) {
	y, err := autograd.Linear(ctx, autograd.Constant(x), l.weight, l.bias)
	if err != nil {
		return nil, err
	}
	return autograd.Relu(ctx, y)
}

// sample is inputs of the last layer, of shape [n, in], and the digits that it should find, I64 of
// shape [n].
type sample struct {
	_      struct{} `tensorpipe:"train.sample"`
	Input  *autograd.Variable
	Digits *tensor.Tensor
}

// loss returns the mean of the cross entropy, a scalar.
func (l *layer) loss(ctx context.Context, s sample) (*autograd.Variable, error) {
	y, err := l.output(ctx, s.Input, s.Digits)
	if err != nil {
		return nil, err
	}
	return autograd.CrossEntropy(ctx, y, autograd.Constant(s.Digits), nil, ops.NLLOptions{Reduction: ops.ReductionMean})
}

// output returns the logarithms of the probabilities of the digits, up to a constant.
func (l *layer) output(ctx context.Context, x *autograd.Variable, digits *tensor.Tensor) (*autograd.Variable, error) {
	if x == nil || digits == nil {
		return nil, fmt.Errorf("%w: a sample without inputs or digits", agent.ErrArguments)
	}
	return autograd.Linear(ctx, x, l.weight, l.bias)
}

// infer is forward without a graph.
func (l *layer) infer(ctx context.Context, x *tensor.Tensor) (*autograd.Variable, error) {
	return l.forward(autograd.NoGrad(ctx), x)
}

// correct returns how many digits the network finds.
func (l *layer) correct(ctx context.Context, s sample) (int, error) {
	ctx = autograd.NoGrad(ctx)
	y, err := l.output(ctx, s.Input, s.Digits)
	if err != nil {
		return 0, err
	}
	e := autograd.EngineOf(ctx)
	_, found, err := e.MaxDim(ctx, y.Tensor(), 1, false)
	if err != nil {
		return 0, err
	}
	if found, err = toHost(ctx, found); err != nil {
		return 0, err
	}
	digits, err := toHost(ctx, s.Digits)
	if err != nil {
		return 0, err
	}
	equal, err := e.Compare(ctx, ops.Eq, found, digits)
	if err != nil {
		return 0, err
	}
	n, err := e.Sum(ctx, equal, nil, false, 0)
	if err != nil {
		return 0, err
	}
	count, err := tensor.At[int64](n)
	return int(count), err
}
