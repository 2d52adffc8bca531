package main

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// The function and the methods as all workers know them.
var (
	newTable = agent.NewFunc[agent.None, *Table]("embedding.newTable")
	lookup   = rref.NewMethod[*Table, []int64, *autograd.Variable]("Lookup")
	params   = rref.NewMethod[*Table, agent.None, *rref.Ref[*autograd.Variable]]("Params")
	changed  = rref.NewMethod[*Table, agent.None, int]("Changed")
)

// The size of the table.
const rows, width = 100_000, 16

// Table is a vector for each word. It stays on its worker.
type Table struct {
	weight *autograd.Variable
	ref    *rref.Ref[*autograd.Variable]
}

// initial returns the first value of an element.
func initial(i int) float32 { return float32(i*i%101)/200 - 0.25 }

// doNewTable is the function newTable.
func doNewTable(ctx context.Context, _ agent.None) (*Table, error) {
	values := make([]float32, rows*width)
	for i := range values {
		values[i] = initial(i)
	}
	t, err := tensor.FromSlice(values, rows, width)
	if err != nil {
		return nil, err
	}
	x, err := autograd.Parameter(t)
	return &Table{x, rref.Own(agent.FromContext(ctx), x)}, err
}

// Lookup returns the vectors of words. The gradient of the table is sparse.
func (t *Table) Lookup(ctx context.Context, words []int64) (*autograd.Variable, error) {
	at, err := tensor.FromSlice(words, len(words))
	if err != nil {
		return nil, err
	}
	return autograd.Embedding(ctx, t.weight, autograd.Constant(at), true)
}

// Params returns a reference to the table of vectors.
func (t *Table) Params(context.Context, agent.None) (*rref.Ref[*autograd.Variable], error) {
	return t.ref, nil
}

// Changed returns the number of vectors that are not as they were in the beginning.
func (t *Table) Changed(context.Context, agent.None) (n int, err error) {
	values, err := tensor.Data[float32](t.weight.Tensor())
	for row := 0; row < len(values)/width; row++ {
		for i := row * width; i < (row+1)*width; i++ {
			if values[i] != initial(i) {
				n++
				break
			}
		}
	}
	return n, err
}
