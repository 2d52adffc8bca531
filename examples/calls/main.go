// Command calls is two workers, one of which calls a function of the other. Start
// both, in two terminals:
//
//	go run ./examples/calls -rank 1
//	go run ./examples/calls -rank 0
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Scaling is the argument of scale.
type Scaling struct {
	X      *tensor.Tensor
	Factor float32
}

// scale is the function as both workers know it.
var scale = agent.NewFunc[Scaling, *tensor.Tensor]("example.scale")

func main() {
	rank := flag.Int("rank", 0, "0 calls, 1 is called")
	rendezvous := flag.String("rendezvous", "tcp://127.0.0.1:29500", "where the two find each other")
	flag.Parse()
	if err := work(context.Background(), *rank, *rendezvous, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "calls:", err)
		os.Exit(1)
	}
}

// work is what a worker does.
func work(ctx context.Context, rank int, rendezvous string, out io.Writer) error {
	a, err := agent.Join(ctx, agent.Config{
		Name: fmt.Sprintf("worker%d", rank), Rank: rank, WorldSize: 2,
		Rendezvous: rendezvous,
		Funcs:      agent.Funcs{scale.Serve(doScale)},
	})
	if err != nil {
		return err
	}
	if rank == 0 {
		x, _ := tensor.FromSlice([]float32{1, 2, 3, 4}, 2, 2)
		y, err := scale.Call(ctx, a, "worker1", Scaling{X: x, Factor: 10})
		if err != nil {
			return errors.Join(err, a.Close())
		}
		last, _ := tensor.At[float32](y, 1, 1)
		fmt.Fprintln(out, y, "ends with", last)
	}
	return a.Shutdown(ctx) // waits until nobody calls any more
}

// doScale runs on the worker that is called.
func doScale(_ context.Context, s Scaling) (*tensor.Tensor, error) {
	x, err := tensor.Data[float32](s.X)
	if err != nil {
		return nil, err
	}
	y := make([]float32, len(x))
	for i := range x {
		y[i] = s.Factor * x[i]
	}
	return tensor.FromSlice(y, s.X.Shape()...)
}
