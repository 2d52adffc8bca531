package autograd_test

import (
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/safetensors"
)

// goldenFile is the results of operators that PyTorch has computed; the tensors are in a file beside
// it, by their keys.
type goldenFile struct {
	RTol  map[string]float64 // by dtype, also the absolute tolerance
	Cases []goldenCase
}

type goldenCase struct {
	Name    string
	Op      string
	Attrs   goldenAttrs
	Inputs  []goldenTensor
	Outputs []goldenTensor
}

// goldenTensor is the key of an argument or a result, and that of its gradient.
type goldenTensor struct {
	Key          string
	Grad         string
	RequiresGrad bool `json:"requires_grad"`
}

// TestGolden compares operators and their gradients with those of PyTorch. The environment variable
// TENSORPIPE_GOLDEN names another folder with such files.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(cmp.Or(os.Getenv("TENSORPIPE_GOLDEN"), "testdata"), "*_ops.json"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, path := range files {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		var file goldenFile
		require.NoError(t, json.Unmarshal(text, &file))
		tensors, _, err := safetensors.ReadFile(strings.TrimSuffix(path, ".json")+".safetensors", safetensors.Options{})
		require.NoError(t, err)
		require.NotEmpty(t, file.Cases)
		for _, c := range file.Cases {
			t.Run(c.Name, func(t *testing.T) { runGolden(t, c, tensors, file.RTol) })
		}
	}
}

func runGolden(t *testing.T, c goldenCase, tensors map[string]*tensor.Tensor, tolerances map[string]float64) {
	args := make([]*autograd.Variable, len(c.Inputs))
	tolerance := 0.0
	for i, in := range c.Inputs {
		require.Contains(t, tensors, in.Key)
		args[i] = autograd.Constant(tensors[in.Key])
		if in.RequiresGrad {
			require.NoError(t, args[i].RequireGrad())
		}
		tolerance = max(tolerance, tolerances[args[i].DType().String()])
	}
	require.NotZero(t, tolerance)
	results, err := applyGolden(t.Context(), c, args)
	require.NoError(t, err)
	require.Len(t, results, len(c.Outputs))
	grads := make([]autograd.Value, len(results))
	for i, out := range c.Outputs {
		requireClose(t, tensors[out.Key], results[i].Value(), tolerance)
		grad, err := tensors[out.Grad].Reshape(results[i].Shape()...)
		require.NoError(t, err)
		grads[i] = autograd.Dense(grad)
	}
	require.NoError(t, autograd.Backward(t.Context(), results, autograd.WithGradients(grads...)))
	for i, in := range c.Inputs {
		if in.RequiresGrad {
			requireClose(t, tensors[in.Grad], args[i].Grad(), tolerance)
		} else {
			require.True(t, args[i].Grad().IsZero())
		}
	}
}

// requireClose fails the test unless got has the shape and nearly the elements of want. A tensor
// without dimensions is stored as one with one element.
func requireClose(t *testing.T, want *tensor.Tensor, got autograd.Value, tolerance float64) {
	t.Helper()
	require.NotNil(t, want)
	dense, err := got.ToDense()
	require.NoError(t, err)
	if dense.Rank() == 0 && want.Len() == 1 {
		want, err = want.Reshape()
		require.NoError(t, err)
	}
	require.Equal(t, want.Shape(), dense.Shape())
	require.Equal(t, want.DType(), dense.DType())
	ok, err := tensor.AllClose(dense, want, tolerance, tolerance)
	require.NoError(t, err)
	if !ok {
		require.Equal(t, floats(t, want), floats(t, dense), "beyond the tolerance of %g", tolerance)
	}
}

// floats returns the elements of a tensor of F32 or F64.
func floats(t *testing.T, x *tensor.Tensor) []float64 {
	t.Helper()
	x, err := x.Contiguous()
	require.NoError(t, err)
	if x.DType() == tensor.F64 {
		data, err := tensor.Data[float64](x)
		require.NoError(t, err)
		return data
	}
	data, err := tensor.Data[float32](x)
	require.NoError(t, err)
	all := make([]float64, len(data))
	for i, v := range data {
		all[i] = float64(v)
	}
	return all
}
