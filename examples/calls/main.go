// Command calls runs one of two workers, of which rank 0 calls a function of rank 1. Start both, in
// two terminals:
//
//	go run ./examples/calls -rank 1
//	go run ./examples/calls -rank 0
//
// Or on two hosts, of which the first is 192.0.2.1, with a file that holds the same secret on both:
//
//	go run ./examples/calls -rank 0 -rendezvous tcp://192.0.2.1:29500 -token-file secret
//	go run ./examples/calls -rank 1 -rendezvous tcp://192.0.2.1:29500 -token-file secret
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

// worker has the values of the flags.
type worker struct {
	rank       int
	rendezvous string
	listen     []string
	token      []byte
}

func main() {
	var w worker
	flag.IntVar(&w.rank, "rank", 0, "rank of this worker: 0 calls, 1 is called")
	flag.StringVar(&w.rendezvous, "rendezvous", "tcp://127.0.0.1:29500", "URL of the store where the workers meet; rank 0 serves it")
	listen := flag.String("listen", "", "URL to listen at; empty is the address from which the store is reached")
	tokenFile := flag.String("token-file", "", "file with the secret of the group, which is needed beyond one host")
	flag.Parse()
	if *listen != "" {
		w.listen = []string{*listen}
	}
	var err error
	if *tokenFile != "" {
		w.token, err = os.ReadFile(*tokenFile)
	}
	if err == nil {
		err = w.run(context.Background(), os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "calls:", err)
		os.Exit(1)
	}
}

// run joins the group of two workers as w. Rank 0 calls the function scale on worker1 and prints
// the result to out. The worker leaves once no worker has calls under way, or at once if its own
// call has failed. The error is that of joining, of the call or of leaving.
func (w worker) run(ctx context.Context, out io.Writer) error {
	a, err := agent.Join(ctx, agent.Config{
		Name: fmt.Sprintf("worker%d", w.rank), Rank: w.rank, WorldSize: 2,
		Rendezvous: w.rendezvous, Listen: w.listen, Token: w.token,
		Funcs: agent.Funcs{scale.Serve(doScale)},
	})
	if err != nil {
		return err
	}
	if w.rank == 0 {
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

// doScale returns a new tensor with the elements of s.X times s.Factor, and does not change s.X. It
// is the function scale, as the called worker runs it. The error is that of tensor.Data, for
// example because the elements of s.X are not float32.
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
