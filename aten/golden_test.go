package aten_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/aten"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/safetensors"
)

// attrs holds the arguments of a golden case that are not tensors.
type attrs struct {
	Alpha, Scalar, Exponent                *float64
	Dim                                    any
	Keepdim                                bool
	Size, Start, Length, Index, Dim0, Dim1 int64
	Shape                                  []int64
}

// golden is a recorded call of PyTorch.
type golden struct {
	Name, Op        string
	Attrs           attrs
	Inputs, Outputs []string
}

// args returns the name of the operator without its namespace, the positional arguments that follow
// the input tensors, and the arguments by name. Both may be nil.
func (g *golden) args(t *testing.T) (name string, remaining []aten.Value, named map[string]aten.Value) {
	t.Helper()
	a := g.Attrs
	switch g.Op {
	case "add":
		if a.Alpha != nil {
			return g.Op, nil, map[string]aten.Value{"alpha": *a.Alpha}
		}
	case "mul_scalar":
		return "mul", values{*a.Scalar}, nil
	case "pow":
		return g.Op, values{*a.Exponent}, nil
	case "sum":
		if a.Dim != nil {
			return g.Op, values{int64(a.Dim.([]any)[0].(float64)), a.Keepdim}, nil
		}
	case "cat", "stack", "softmax", "log_softmax":
		return g.Op, values{int64(a.Dim.(float64))}, nil
	case "split":
		return g.Op, values{a.Size, int64(a.Dim.(float64))}, nil
	case "narrow":
		return g.Op, values{int64(a.Dim.(float64)), a.Start, a.Length}, nil
	case "select":
		return g.Op, values{int64(a.Dim.(float64)), a.Index}, nil
	case "transpose":
		return g.Op, values{a.Dim0, a.Dim1}, nil
	case "reshape", "expand":
		return g.Op, values{a.Shape}, nil
	}
	return g.Op, nil, nil
}

// TestGolden checks that the operators return the results of PyTorch that are recorded in
// testdata/ops.safetensors, within the recorded tolerance. This test needs no PyTorch.
func TestGolden(t *testing.T) {
	text, err := os.ReadFile("testdata/ops.json")
	require.NoError(t, err)
	var all struct {
		Rtol  map[string]float64
		Cases []golden
	}
	require.NoError(t, json.Unmarshal(text, &all))
	require.Len(t, all.Cases, 78)
	tensors, _, err := safetensors.ReadFile("testdata/ops.safetensors", safetensors.Options{})
	require.NoError(t, err)
	for _, g := range all.Cases {
		t.Run(g.Name, func(t *testing.T) {
			var list []*tensor.Tensor
			args := values{}
			for _, key := range g.Inputs {
				list = append(list, tensors[key])
				args = append(args, tensors[key])
			}
			name, remaining, named := g.args(t)
			if name == "cat" || name == "stack" {
				args = values{list}
			}
			out, err := table.Call(t.Context(), "aten::"+name, append(args, remaining...), named)
			require.NoError(t, err)
			got, ok := out[0].([]*tensor.Tensor)
			if !ok {
				got = []*tensor.Tensor{out[0].(*tensor.Tensor)}
			}
			require.Len(t, got, len(g.Outputs))
			for i, key := range g.Outputs {
				rtol := all.Rtol[got[i].DType().String()]
				want := tensors[key]
				if got[i].Rank() == 0 { // was recorded with one dimension
					want = must(want.View())
				}
				near, err := tensor.AllClose(got[i], want, rtol, rtol)
				require.NoError(t, err)
				require.True(t, near, "%v, want %v", numbers(t, got[i]), numbers(t, tensors[key]))
			}
		})
	}
}
