package agent_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// scaling is the argument of the function scaleFunc.
type scaling struct {
	X      *tensor.Tensor
	Factor float32
}

var scaleFunc = agent.NewFunc[scaling, *tensor.Tensor]("example.scale")

// scaleBy returns a new tensor with the elements of s.X times s.Factor.
func scaleBy(_ context.Context, s scaling) (*tensor.Tensor, error) {
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

// joinExample joins n workers, which serve scaleFunc, to a group of their own in this process. It
// returns them, and a function that closes them.
func joinExample(ctx context.Context, n int) ([]*agent.Agent, func()) {
	s := store.NewMemory(store.Limits{})
	workers := make([]*agent.Agent, n)
	var joining sync.WaitGroup
	for rank := range n {
		joining.Go(func() {
			var err error
			workers[rank], err = agent.Join(ctx, agent.Config{
				Name: fmt.Sprint("worker", rank), Rank: rank, WorldSize: n, Store: s,
				Funcs: agent.Funcs{scaleFunc.Serve(scaleBy)},
			})
			must(err)
		})
	}
	joining.Wait()
	return workers, func() {
		for _, a := range workers {
			must(a.Close())
		}
		must(s.Close())
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// A worker calls a function of another one, with a tensor as its argument and its result. In a
// program each worker is a process of its own, and Config.Rendezvous is the URL of their store.
func Example() {
	ctx := context.Background()
	workers, closeAll := joinExample(ctx, 2)
	defer closeAll()
	x, err := tensor.FromSlice([]float32{1, 2, 3, 4}, 2, 2)
	must(err)
	y, err := scaleFunc.Call(ctx, workers[0], "worker1", scaling{X: x, Factor: 10})
	must(err)
	last, err := tensor.At[float32](y, 1, 1)
	must(err)
	fmt.Println(y, "ends with", last)
	// Output: f32[2,2] ends with 40
}

// Calls that run at once: Go returns a future, and WaitAll of package future would wait for
// several.
func ExampleFunc_Go() {
	ctx := context.Background()
	workers, closeAll := joinExample(ctx, 3)
	defer closeAll()
	x, err := tensor.FromSlice([]float32{1, 2}, 2)
	must(err)
	one := scaleFunc.Go(ctx, workers[0], "worker1", scaling{X: x, Factor: 10})
	two := scaleFunc.Go(ctx, workers[0], "worker2", scaling{X: x, Factor: 100})
	for _, f := range []*agent.Future[*tensor.Tensor]{one, two} {
		y, err := f.Wait(ctx)
		must(err)
		data, err := tensor.Data[float32](y)
		must(err)
		fmt.Println(data)
	}
	// Output:
	// [10 20]
	// [100 200]
}

// A worker on a network needs a secret of the group or TLS. This Config would admit every process
// that has a certificate, without requiring one of the others: Join rejects it, and its error names
// what to set.
func ExampleConfig() {
	_, err := agent.Join(context.Background(), agent.Config{
		Name: "worker0", WorldSize: 2, Rendezvous: "tcp://node17:29500",
		TLS: &tls.Config{Certificates: make([]tls.Certificate, 1)},
	})
	fmt.Println(err)
	// Output: agent: join as worker0: wrong configuration: TLS admits workers without a certificate: set its ClientAuth to tls.RequireAndVerifyClientCert, or set Token
}
