package aten_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/aten"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// requireTorch is the environment variable that makes a test fail, instead of skip, without
// PyTorch.
const requireTorch = "TENSORPIPE_REQUIRE_TORCH"

// table is the table of all comparisons.
var table = aten.Default()

// torchCall is a call made here and in PyTorch.
type torchCall struct {
	name  string
	args  []aten.Value
	named map[string]aten.Value
	exact bool // the text of an error must contain PyTorch's
	bools bool // a Scalar is a bool
}

// torchResult is a result of PyTorch.
type torchResult struct {
	Error   string
	Schema  string
	Skip    string // why there is no result
	Results []json.RawMessage
}

// runTorch makes all calls in one process with PyTorch, because importing PyTorch takes seconds,
// and returns a result for each call. Without PyTorch it skips the test, or fails it if
// TENSORPIPE_REQUIRE_TORCH is 1.
func runTorch(t *testing.T, calls []torchCall) []torchResult {
	t.Helper()
	var questions []map[string]any
	for _, c := range calls {
		args := []any{}
		for _, v := range c.args {
			args = append(args, toJSON(t, v))
		}
		named := map[string]any{}
		for name, v := range c.named {
			named[name] = toJSON(t, v)
		}
		questions = append(questions, map[string]any{"op": c.name, "args": args, "named": named, "bools": c.bools})
	}
	in, err := json.Marshal(questions)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 4*testwait.Limit) // for thousands of calls
	defer cancel()
	cmd := exec.CommandContext(ctx, "/usr/bin/python3", "testdata/torch_peer.py")
	cmd.Stdin = bytes.NewReader(in)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
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
	var answers []torchResult
	require.NoError(t, json.Unmarshal(out.Bytes(), &answers))
	require.Len(t, answers, len(calls))
	return answers
}

func skipOrFail(t *testing.T, why any) {
	t.Helper()
	if os.Getenv(requireTorch) == "1" {
		t.Fatal(why)
	}
	t.Skip("no PyTorch here: ", why)
}

// toJSON returns v, an argument or a part of one, as a value that json.Marshal turns into the form
// that testdata/torch_peer.py reads.
func toJSON(t *testing.T, v aten.Value) any {
	t.Helper()
	switch v := v.(type) {
	case float64:
		return map[string]string{"float": strconv.FormatFloat(v, 'g', -1, 64)}
	case *tensor.Sparse:
		return map[string]any{"sparse": []any{toJSON(t, v.Indices()), toJSON(t, v.Values())}, "shape": v.Shape(), "coalesced": v.Coalesced()}
	case []*tensor.Tensor:
		out := []any{}
		for _, e := range v {
			out = append(out, toJSON(t, e))
		}
		return out
	case *tensor.Tensor:
		x, err := v.Clone()
		require.NoError(t, err)
		p, err := x.Storage().Bytes()
		require.NoError(t, err)
		return map[string]any{"dtype": x.DType().String(), "shape": append([]int{}, x.Shape()...), "data": base64.StdEncoding.EncodeToString(p)}
	default:
		return v
	}
}

// fromJSON returns the value that raw, a result from testdata/torch_peer.py, represents.
func fromJSON(t *testing.T, raw json.RawMessage) aten.Value {
	t.Helper()
	var v any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	require.NoError(t, d.Decode(&v))
	switch v := v.(type) {
	case json.Number:
		n, err := v.Int64()
		require.NoError(t, err)
		return n
	case []any:
		var out []*tensor.Tensor
		for _, e := range v {
			out = append(out, loadTensor(t, e.(map[string]any)))
		}
		return out
	case map[string]any:
		if text, ok := v["float"]; ok {
			f, err := strconv.ParseFloat(text.(string), 64)
			require.NoError(t, err)
			return f
		}
		parts, ok := v["sparse"].([]any)
		if !ok {
			return loadTensor(t, v)
		}
		s, err := tensor.NewSparse(loadTensor(t, parts[0].(map[string]any)), loadTensor(t, parts[1].(map[string]any)), loadShape(t, v["shape"])...)
		require.NoError(t, err)
		return s
	default:
		return v
	}
}

func loadShape(t *testing.T, v any) []int {
	t.Helper()
	var out []int
	for _, n := range v.([]any) {
		i, err := n.(json.Number).Int64()
		require.NoError(t, err)
		out = append(out, int(i))
	}
	return out
}

func loadTensor(t *testing.T, v map[string]any) *tensor.Tensor {
	t.Helper()
	d, err := tensor.ParseDType(v["dtype"].(string))
	require.NoError(t, err)
	raw, err := base64.StdEncoding.DecodeString(v["data"].(string))
	require.NoError(t, err)
	x, err := tensor.Zeros(d, loadShape(t, v["shape"])...)
	require.NoError(t, err)
	p, err := x.Storage().Bytes()
	require.NoError(t, err)
	require.Len(t, p, len(raw))
	copy(p, raw)
	return x
}

// tolerance returns the relative difference due to rounding that is allowed for results of dtype d.
// It is 0 for integers and bools.
func tolerance(d tensor.DType) float64 {
	switch d {
	case tensor.F16:
		return 4e-3
	case tensor.BF16:
		return 3e-2
	case tensor.F32, tensor.C64:
		return 2e-5
	case tensor.F64, tensor.C128:
		return 1e-11
	}
	return 0
}

// requireSame fails the test unless got, a result of this package, has the type of want, the result
// of PyTorch, and equal numbers within the tolerance. NaNs are equal. what describes the call.
func requireSame(t *testing.T, want, got aten.Value, what string) {
	t.Helper()
	switch want := want.(type) {
	case *tensor.Tensor:
		require.IsType(t, want, got, what)
		requireClose(t, want, got.(*tensor.Tensor), what)
	case *tensor.Sparse:
		require.IsType(t, want, got, what)
		a, err := want.ToDense()
		require.NoError(t, err)
		b, err := got.(*tensor.Sparse).ToDense()
		require.NoError(t, err)
		requireClose(t, a, b, what)
	case []*tensor.Tensor:
		require.Len(t, got, len(want), what)
		for i := range want {
			requireClose(t, want[i], got.([]*tensor.Tensor)[i], what)
		}
	default:
		require.Equal(t, want, got, what)
	}
}

func requireClose(t *testing.T, want, got *tensor.Tensor, what string) {
	t.Helper()
	require.Equal(t, want.String(), got.String(), what)
	tol := tolerance(want.DType())
	out, err := table.Call(t.Context(), "aten::allclose", []aten.Value{got, want, tol, tol, true}, nil)
	require.NoError(t, err)
	if out[0] != true {
		require.Equal(t, numbers(t, want), numbers(t, got), what)
	}
}

// numbers returns the elements of x as complex numbers in row-major order, for messages.
func numbers(t *testing.T, x *tensor.Tensor) []complex128 {
	t.Helper()
	out, err := table.Call(t.Context(), "aten::to.dtype", []aten.Value{x, "c128"}, nil)
	require.NoError(t, err)
	c, err := out[0].(*tensor.Tensor).Contiguous()
	require.NoError(t, err)
	data, err := tensor.Data[complex128](c)
	require.NoError(t, err)
	return data
}

// TestAgainstTorch checks that every operator returns PyTorch's result, and fails if PyTorch fails,
// except for dtypes that PyTorch has not implemented. It needs PyTorch.
func TestAgainstTorch(t *testing.T) {
	short.Skip(t, "starts PyTorch")
	calls := torchCalls(t)
	answers := runTorch(t, calls)
	byName := map[string][]int{}
	for i, c := range calls {
		byName[c.name] = append(byName[c.name], i)
	}
	for _, name := range table.Names() {
		t.Run(name, func(t *testing.T) {
			results := 0
			for _, i := range byName[name] {
				if answers[i].Skip == "" && requireTorchResult(t, calls[i], answers[i]) {
					results++
				}
			}
			require.NotZero(t, results, "no result was compared")
		})
	}
}

// requireTorchResult makes the call c here and compares its results, or its failure, with want,
// those of PyTorch. It returns true if there were results to compare, and false if PyTorch failed.
func requireTorchResult(t *testing.T, c torchCall, want torchResult) bool {
	t.Helper()
	what := fmt.Sprintf("%s%s %v", c.name, words(c.args), c.named)
	out, err := table.Call(t.Context(), c.name, c.args, c.named)
	if strings.Contains(want.Error, "not implemented for") {
		return false // PyTorch has no implementation for that dtype
	}
	if want.Error != "" {
		require.Error(t, err, "%s\nPyTorch: %s", what, want.Error)
		if c.exact {
			require.Contains(t, err.Error(), want.Error, what)
		}
		return false
	}
	require.NoError(t, err, what)
	require.Len(t, out, len(want.Results), what)
	for j := range out {
		requireSame(t, fromJSON(t, want.Results[j]), out[j], what)
	}
	schema, err := aten.Parse(want.Schema)
	require.NoError(t, err)
	op, err := table.Lookup(schema.String())
	require.NoError(t, err)
	require.Len(t, op, 1)
	return true
}

func words(args []aten.Value) string {
	text := ""
	for _, v := range args {
		text += fmt.Sprintf(" %v", v)
	}
	return text
}

var allDTypes = []tensor.DType{
	tensor.Bool, tensor.U8, tensor.I8, tensor.I16, tensor.I32, tensor.I64,
	tensor.F16, tensor.BF16, tensor.F32, tensor.F64, tensor.C64, tensor.C128,
}

// random returns a new tensor of small random numbers. Of those with two dimensions or more, about
// half are not contiguous.
func random(t *testing.T, r *rand.Rand, d tensor.DType, shape ...int) *tensor.Tensor {
	t.Helper()
	n, err := tensor.NumElements(shape)
	require.NoError(t, err)
	data := make([]complex128, n)
	for i := range data {
		data[i] = complex(float64(r.IntN(9)-3), float64(r.IntN(5)-2))
		switch d {
		case tensor.U8:
			data[i] = complex(float64(r.IntN(6)), 0)
		case tensor.Bool:
			data[i] = complex(float64(r.IntN(2)), 0)
		case tensor.F16, tensor.BF16, tensor.F32, tensor.F64:
			data[i] += complex(float64(r.IntN(8))/8, 0)
		}
	}
	x, err := tensor.FromSlice(data, shape...)
	require.NoError(t, err)
	out, err := table.Call(t.Context(), "aten::to.dtype", []aten.Value{x, aten.ScalarTypeOf(d)}, nil)
	require.NoError(t, err)
	x = out[0].(*tensor.Tensor)
	if len(shape) >= 2 && r.IntN(2) == 0 {
		x = permuted(t, x)
	}
	return x
}

// permuted returns a copy of x with the same shape and elements, but with the first and last
// dimensions exchanged in memory.
func permuted(t *testing.T, x *tensor.Tensor) *tensor.Tensor {
	t.Helper()
	y, err := x.Transpose(0, x.Rank()-1)
	require.NoError(t, err)
	y, err = y.Clone()
	require.NoError(t, err)
	y, err = y.Transpose(0, x.Rank()-1)
	require.NoError(t, err)
	return y
}
