// Command split-network trains a network whose layers are on two workers to compute the exclusive or of
// two bits. A third worker calls the layers through references, and never has their parameters.
//
//	go run ./examples/split-network
//
// starts all three as processes. To run one of them alone, on any host, use the flags.
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

var workers = []string{"trainer", "hidden", "output"} // by rank

func main() {
	rank := flag.Int("rank", -1, "rank of this worker, 0 to 2; without it all workers are started")
	rendezvous := flag.String("rendezvous", "tcp://127.0.0.1:29500", "URL of the store where the workers meet; rank 0 serves it")
	flag.Parse()
	var err error
	if *rank < 0 {
		err = startAll(*rendezvous)
	} else {
		err = run(context.Background(), *rank, *rendezvous, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "split-network:", err)
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
	methods := rref.Methods{forward.Serve((*Layer).Forward), params.Serve((*Layer).Params)}
	a, err := agent.Join(ctx, agent.Config{
		Name: workers[rank], Rank: rank, WorldSize: len(workers), Rendezvous: rendezvous,
		Funcs:      agent.Funcs{newLayer.Serve(doNewLayer)},
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

// train trains the network, and prints its results for all pairs of bits.
func train(ctx context.Context, a *agent.Agent, out io.Writer) error {
	layers := []*rref.Ref[*Layer]{
		rref.Remote(ctx, a, "hidden", newLayer, Size{2, 8}), rref.Remote(ctx, a, "output", newLayer, Size{8, 1}),
	}
	var all []*rref.Ref[*autograd.Variable]
	for _, l := range layers {
		p, err := params.Call(ctx, l, agent.None{})
		if err != nil {
			return err
		}
		all = append(all, p...)
	}
	bits, err := tensor.FromSlice([]float32{0, 0, 0, 1, 1, 0, 1, 1}, 4, 2)
	if err != nil {
		return err
	}
	want, err := tensor.FromSlice([]float32{0, 1, 1, 0}, 4, 1)
	if err != nil {
		return err
	}
	var y *autograd.Variable
	adam := dist.NewOptimizer(all, dist.Adam{LR: 0.05})
	for range 300 {
		if y, err = step(ctx, a, layers, bits, want, adam); err != nil {
			return err
		}
	}
	for i, text := range []string{"0 xor 0", "0 xor 1", "1 xor 0", "1 xor 1"} {
		v, err := tensor.At[float32](y.Tensor(), i, 0)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s is %.0f\n", text, v*v)
	}
	err = adam.Release(ctx)
	for _, f := range all {
		err = errors.Join(err, f.Release(ctx))
	}
	for _, l := range layers {
		err = errors.Join(err, l.Release(ctx))
	}
	return err
}

// step makes one step of the optimizer, and returns the output of the network before it.
func step(ctx context.Context, a *agent.Agent, layers []*rref.Ref[*Layer], x, want *tensor.Tensor, o *dist.Optimizer) (*autograd.Variable, error) {
	ctx, c, err := dist.WithContext(ctx, a)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	y := autograd.Constant(x)
	for _, l := range layers {
		if y, err = forward.Call(ctx, l, y); err != nil {
			return nil, err
		}
	}
	loss, err := autograd.MSELoss(ctx, y, autograd.Constant(want), ops.ReductionMean)
	if err != nil {
		return nil, err
	}
	if err := c.Backward(ctx, loss); err != nil {
		return nil, err
	}
	return y, o.Step(ctx)
}
