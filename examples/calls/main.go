// Command calls runs one of two workers, of which rank 0 calls a function of rank 1. Start both, in two
// terminals:
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

// Scaling is the argument of the function scale.
type Scaling struct {
	X      *tensor.Tensor
	Factor float32
}

// scale is the function as both workers know it.
var scale = agent.NewFunc[Scaling, *tensor.Tensor]("example.scale")

func main() {
	rank := flag.Int("rank", 0, "rank of this worker: 0 calls, 1 is called")
	rendezvous := flag.String("rendezvous", "tcp://127.0.0.1:29500", "URL of the store where the workers meet")
	flag.Parse()
	if err := work(context.Background(), *rank, *rendezvous, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "calls:", err)
		os.Exit(1)
	}
}

// work joins the group as the worker of that rank. Rank 0 calls scale on worker1 and prints the result
// to out. The worker leaves when no worker has calls under way, or at once if its call has failed.
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
	return a.Shutdown(ctx) // waits until no worker has calls under way
}

// doScale returns a new tensor with the elements of s.X times s.Factor. It fails if the elements of s.X
// are not float32. It is the function scale, as the called worker runs it.
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
