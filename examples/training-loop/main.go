// Command training-loop adds tensors on another worker, within a distributed graph, and computes the
// gradients of the result on both workers: the loop of PyTorch's end-to-end test in C++.
//
//	go run ./examples/training-loop
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
)

var workers = []string{"caller", "worker"} // by rank

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
		fmt.Fprintln(os.Stderr, "training-loop:", err)
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

// run joins the group as the worker with that rank. Rank 0 runs the loop, and prints to out.
func run(ctx context.Context, rank int, rendezvous string, out io.Writer) error {
	a, err := agent.Join(ctx, agent.Config{
		Name: workers[rank], Rank: rank, WorldSize: len(workers), Rendezvous: rendezvous,
		Extensions: []agent.Extension{rref.New(rref.Options{}), dist.New(dist.Options{})},
	})
	if err != nil {
		return err
	}
	if rank == 0 {
		for i := range 4 {
			x, y, err := iterate(ctx, a)
			if err != nil {
				return errors.Join(err, a.Close())
			}
			fmt.Fprintf(out, "iteration %d: the gradients are %g and %g\n", i+1, x, y)
		}
	}
	return a.Shutdown(ctx)
}

// iterate adds two tensors on the other worker, and the first one six times more to the result, the last
// time by a reference. It returns an element of the gradient of each tensor.
func iterate(ctx context.Context, a *agent.Agent) (gx, gy float32, err error) {
	x, err := ones()
	if err != nil {
		return 0, 0, err
	}
	y, err := ones()
	if err != nil {
		return 0, 0, err
	}
	ctx, c, err := dist.WithContext(ctx, a)
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()
	sum := y
	for range 6 {
		if sum, err = agent.One[*autograd.Variable](a.Op(ctx, "worker", "aten::add", x, sum)); err != nil {
			return 0, 0, err
		}
	}
	ref := rref.RemoteOp[*autograd.Variable](ctx, a, "worker", "aten::add", x, sum)
	if sum, err = ref.ToHere(ctx); err != nil {
		return 0, 0, err
	}
	loss, err := autograd.Sum(ctx, sum)
	if err != nil {
		return 0, 0, err
	}
	if err := c.Backward(ctx, loss); err != nil {
		return 0, 0, err
	}
	gx, err = first(c, x)
	gy, err2 := first(c, y)
	return gx, gy, errors.Join(err, err2, ref.Release(ctx))
}

// ones returns a parameter of shape [3, 3].
func ones() (*autograd.Variable, error) {
	t, err := tensor.Zeros(tensor.F32, 3, 3)
	if err == nil {
		err = tensor.Fill(t, float32(1))
	}
	if err != nil {
		return nil, err
	}
	return autograd.Parameter(t)
}

// first returns the first element of the gradient of x.
func first(c *dist.Context, x *autograd.Variable) (float32, error) {
	g, err := c.Gradient(x)
	if err != nil {
		return 0, err
	}
	return tensor.At[float32](g.Tensor(), 0, 0)
}
