// Command embedding trains a table of vectors for words, which is on another worker, with sparse
// gradients: each step sends and changes only the rows of its words. The words of a pair learn to have a
// large product if they belong together.
//
//	go run ./examples/embedding
//
// starts both workers as processes. To run one of them alone, on any host, use the flags.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

var workers = []string{"trainer", "table"} // by rank

func main() {
	rank := flag.Int("rank", -1, "rank of this worker, 0 or 1; without it both workers are started")
	rendezvous := flag.String("rendezvous", "tcp://127.0.0.1:29500", "URL of the store where the workers meet; rank 0 serves it")
	flag.Parse()
	var err error
	if *rank < 0 {
		err = startAll(*rendezvous)
	} else {
		err = run(context.Background(), *rank, *rendezvous, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "embedding:", err)
		os.Exit(1)
	}
}

// startAll runs all workers as processes, and returns when they have ended.
func startAll(rendezvous string) (err error) {
	started := make([]*exec.Cmd, len(workers))
	for rank := range workers {
		c := exec.Command(os.Args[0], "-rank", strconv.Itoa(rank), "-rendezvous", rendezvous)
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		started[rank] = c
		err = errors.Join(err, c.Start())
	}
	for _, c := range started {
		err = errors.Join(err, c.Wait())
	}
	return err
}

// run joins the group as the worker with that rank. Rank 0 trains, and prints to out.
func run(ctx context.Context, rank int, rendezvous string, out io.Writer) error {
	methods := rref.Methods{lookup.Serve((*Table).Lookup), params.Serve((*Table).Params), changed.Serve((*Table).Changed)}
	a, err := agent.Join(ctx, agent.Config{
		Name: workers[rank], Rank: rank, WorldSize: len(workers), Rendezvous: rendezvous,
		Funcs:      agent.Funcs{newTable.Serve(doNewTable)},
		Extensions: []agent.Extension{rref.New(rref.Options{Methods: methods}), dist.New(dist.Options{})},
	})
	if err != nil {
		return err
	}
	if rank == 0 {
		if err := train(ctx, a, out); err != nil {
			return errors.Join(err, a.Close())
		}
	}
	return a.Shutdown(ctx)
}

// The pairs of words, and whether they belong together.
var (
	left, right = []int64{3, 3, 500, 500}, []int64{70_000, 99_999, 70_000, 99_999}
	together    = []float32{1, 0, 0, 1}
)

// train trains the table, and prints the products of the pairs and the number of rows that have changed.
func train(ctx context.Context, a *agent.Agent, out io.Writer) error {
	table := rref.Remote(ctx, a, "table", newTable, agent.None{})
	weight, err := params.Call(ctx, table, agent.None{})
	if err != nil {
		return err
	}
	sgd := dist.NewSGD([]*rref.Ref[*autograd.Variable]{weight}, 1)
	var products *autograd.Variable
	for range 200 {
		if products, err = step(ctx, a, table, sgd); err != nil {
			return err
		}
	}
	for i := range left {
		v, err := tensor.At[float32](products.Tensor(), i)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "words %d and %d: %.1f\n", left[i], right[i], v*v)
	}
	n, err := changed.Call(ctx, table, agent.None{})
	fmt.Fprintf(out, "%d of %d rows have changed\n", n, rows)
	return errors.Join(err, sgd.Release(ctx), weight.Release(ctx), table.Release(ctx))
}

// step makes one step of the optimizer, and returns the products of the pairs before it.
func step(ctx context.Context, a *agent.Agent, table *rref.Ref[*Table], o *dist.Optimizer) (*autograd.Variable, error) {
	ctx, c, err := dist.WithContext(ctx, a)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	x, err := lookup.Call(ctx, table, left)
	if err != nil {
		return nil, err
	}
	y, err := lookup.Call(ctx, table, right)
	if err != nil {
		return nil, err
	}
	if x, err = autograd.Mul(ctx, x, y); err != nil {
		return nil, err
	}
	products, err := autograd.SumDims(ctx, x, []int{1}, false)
	if err != nil {
		return nil, err
	}
	want, err := tensor.FromSlice(together, len(together))
	if err != nil {
		return nil, err
	}
	loss, err := autograd.MSELoss(ctx, products, autograd.Constant(want), ops.ReductionMean)
	if err != nil {
		return nil, err
	}
	if err := c.Backward(ctx, loss); err != nil {
		return nil, err
	}
	return products, o.Step(ctx)
}
