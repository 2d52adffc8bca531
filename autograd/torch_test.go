package autograd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// torchCase is an operator and the same for PyTorch: a Python expression in which x is the list of inputs.
type torchCase struct {
	expression string
	inputs     []*variable
	apply      torchFunc
}

type torchFunc = func(ctx context.Context, xs []*variable) (*variable, error)

// torchTensor is a tensor for PyTorch, or a tensor of it, whose elements are texts then.
type torchTensor struct {
	Shape []int
	Data  []string
}

// torchAnswer is the result of an expression, or its error.
type torchAnswer struct {
	Error string
	Out   torchTensor
	Grads []*torchTensor
	Names []string
}

// TestTorch compares operators, their gradients and the names of their nodes with those of PyTorch, for
// random shapes and attributes. It skips without PyTorch, or fails if the environment variable
// TENSORPIPE_REQUIRE_TORCH is 1.
func TestTorch(t *testing.T) {
	cases := torchCases()
	answers := askTorch(t, cases)
	failures := 0
	for i, c := range cases {
		want, what := answers[i], fmt.Sprint(c.expression, " of ", c.inputs)
		y, err := c.apply(t.Context(), c.inputs)
		if want.Error != "" {
			failures++
			require.Error(t, err, "%s: %s", what, want.Error)
			continue
		}
		require.NoError(t, err, what)
		grad := make([]float64, y.Tensor().Len())
		for k := range grad {
			grad[k] = math.Cos(float64(k + 1))
		}
		given := autograd.WithGradients(constant(grad, y.Shape()...).Value())
		require.NoError(t, autograd.Backward(t.Context(), []*variable{y}, given), what)
		requireAnswer(t, what, want.Out, y.Value())
		require.Contains(t, want.Names, y.Node().Name(), what)
		for k, x := range c.inputs {
			require.Equal(t, want.Grads[k] == nil, x.Grad().IsZero(), "%s: gradient %d", what, k)
			if want.Grads[k] != nil {
				requireAnswer(t, what, *want.Grads[k], x.Grad())
			}
		}
	}
	require.Less(t, failures, len(cases)/4)
}

// requireAnswer fails the test unless got has the shape and nearly the elements of want.
func requireAnswer(t *testing.T, expression string, want torchTensor, got autograd.Value) {
	t.Helper()
	dense, err := got.ToDense()
	require.NoError(t, err, expression)
	require.Equal(t, want.Shape, append([]int{}, dense.Shape()...), expression)
	for i, v := range floats(t, dense) {
		number, err := strconv.ParseFloat(want.Data[i], 64)
		require.NoError(t, err)
		if v != number { // also infinite ones
			require.InDelta(t, number, v, 1e-9*max(1, math.Abs(number)), "%s: element %d", expression, i)
		}
	}
}

// askTorch has PyTorch evaluate all cases in one process, because importing it takes seconds.
func askTorch(t *testing.T, cases []torchCase) []torchAnswer {
	t.Helper()
	questions := []map[string]any{}
	for _, c := range cases {
		inputs := []map[string]any{}
		for _, x := range c.inputs {
			input := map[string]any{"shape": append([]int{}, x.Shape()...), "grad": x.RequiresGrad()}
			if input["integers"] = x.DType() == tensor.I64; x.DType() == tensor.I64 {
				data, err := tensor.Data[int64](x.Tensor())
				require.NoError(t, err)
				input["data"] = data
			} else {
				input["data"] = floats(t, x.Tensor())
			}
			inputs = append(inputs, input)
		}
		questions = append(questions, map[string]any{"expression": c.expression, "inputs": inputs})
	}
	in, err := json.Marshal(questions)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 4*testwait.Limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/usr/bin/python3", "testdata/torch_peer.py")
	var out, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &stderr
	if err := cmd.Run(); err != nil {
		if out.Len() == 0 && stderr.Len() == 0 {
			skipOrFail(t, err) // Python is missing
		}
		require.NoError(t, err, stderr.String())
	}
	var missing struct{ Missing string }
	if json.Unmarshal(out.Bytes(), &missing) == nil && missing.Missing != "" {
		skipOrFail(t, missing.Missing)
	}
	var answers []torchAnswer
	require.NoError(t, json.Unmarshal(out.Bytes(), &answers))
	require.Len(t, answers, len(cases))
	return answers
}

func skipOrFail(t *testing.T, why any) {
	t.Helper()
	if os.Getenv("TENSORPIPE_REQUIRE_TORCH") == "1" {
		t.Fatal("PyTorch is required:", why)
	}
	t.Skip("PyTorch is missing: ", why)
}
