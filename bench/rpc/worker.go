// Package rpc measures calls between workers in separate processes, and compares them with those of
// other libraries in the same run.
package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Pair is the argument of Add: two tensors of float32 with the same number of elements.
type Pair struct{ A, B *tensor.Tensor }

// The functions that are called. Add returns the sum of two tensors of float32; Take only receives
// its argument.
var (
	Add  = agent.NewFunc[Pair, *tensor.Tensor]("bench.add")
	Take = agent.NewFunc[*tensor.Tensor, agent.None]("bench.take")

	// Plain is Add with default options. Add and Take are short.
	Plain = agent.NewFunc[Pair, *tensor.Tensor]("bench.plain")

	// Bare returns the URL of a listener whose pipes reply to each message with an empty one. A
	// comparison with it shows the cost of the agent.
	Bare = agent.NewFunc[agent.None, string]("bench.bare")
)

// add is the function that the calls Add and Plain run. It returns a new tensor with the sum of the two
// tensors. It fails unless both are contiguous tensors of float32 with the same number of elements.
func add(_ context.Context, p Pair) (*tensor.Tensor, error) {
	x, err := tensor.Data[float32](p.A)
	if err != nil {
		return nil, err
	}
	y, err := tensor.Data[float32](p.B)
	if err != nil {
		return nil, err
	}
	if len(x) != len(y) {
		return nil, fmt.Errorf("%d and %d elements", len(x), len(y))
	}
	sum, err := tensor.Zeros(tensor.F32, p.A.Shape()...)
	if err != nil {
		return nil, err
	}
	z, err := tensor.MutableData[float32](sum)
	if err != nil {
		return nil, err
	}
	for i := range z {
		z[i] = x[i] + y[i]
	}
	return sum, nil
}

func takeTensor(context.Context, *tensor.Tensor) (agent.None, error) { return agent.None{}, nil }

// Environment variables of a worker that is a child process.
const (
	envRank  = "TENSORPIPE_BENCH_RANK"
	envWorld = "TENSORPIPE_BENCH_WORLD"
	envStore = "TENSORPIPE_BENCH_STORE"
	envURLs  = "TENSORPIPE_BENCH_LISTEN"
)

// IsWorker reports whether the function Start, called in another process, has started this process
// as a worker. If so, the program must call RunWorker.
func IsWorker() bool { return os.Getenv(envRank) != "" }

// RunWorker joins the group for which Start has started this process, and serves calls until in,
// the process's stdin, ends. Then it leaves the group and returns. Before it joins it calls the
// functions configure with its configuration. ctx bounds only the joining. The error is that of
// preparing the worker, of joining, of reading in or of leaving, or several of them joined.
func RunWorker(ctx context.Context, in io.Reader, configure ...func(*agent.Config)) error {
	rank, err := strconv.Atoi(os.Getenv(envRank))
	if err != nil {
		return err
	}
	world, err := strconv.Atoi(os.Getenv(envWorld))
	if err != nil {
		return err
	}
	listen := os.Getenv(envURLs)
	bare, err := newEchoPipe(ctx, listen)
	if err != nil {
		return err
	}
	pages, err := newPageServer()
	if err != nil {
		return errors.Join(err, bare.close())
	}
	a, err := join(ctx, rank, world, os.Getenv(envStore), listen, bare.listener.URLs()[0], pages, configure)
	if err != nil {
		return errors.Join(err, bare.close(), pages.close())
	}
	_, err = io.Copy(io.Discard, in)
	return errors.Join(err, a.Close(), bare.close(), pages.close())
}

// join makes this process the worker with that rank in a group of world workers, which meet at the
// URL rendezvous, and returns its agent once all have joined. If listen is not empty the agent
// listens only at that URL. bare is the string that the worker's function Bare returns. If pages is
// not nil, the worker serves its pages, and uses only its path. join calls the functions configure
// with the configuration. The error is that of agent.Join.
func join(ctx context.Context, rank, world int, rendezvous, listen, bare string, pages *pageServer, configure []func(*agent.Config)) (*agent.Agent, error) {
	c := agent.Config{
		Name: fmt.Sprintf("worker%d", rank), Rank: rank, WorldSize: world,
		Rendezvous: rendezvous, StoreOptions: store.Options{Join: rank > 0},
		Funcs: append(agent.Funcs{
			Add.Serve(add, agent.WithShort()),
			Plain.Serve(add),
			Take.Serve(takeTensor, agent.WithShort(), agent.WithBorrowedArgs()),
			Bare.Serve(func(context.Context, agent.None) (string, error) { return bare, nil }),
		}, streamFuncs...),
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if listen != "" {
		c.Listen = []string{listen}
	}
	if pages != nil {
		pages.configure(&c)
	}
	for _, f := range configure {
		f(&c)
	}
	return agent.Join(ctx, c)
}

// Start makes this process worker0 of a group of world workers, starts the other ones as processes
// of the program at path, which must call RunWorker, and returns the agent of worker0 once all have
// joined. The workers meet at the URL rendezvous. They listen at the URL listen if that is not
// empty. Before worker0 joins, the functions configure are called with its configuration. Start fails
// after 30 seconds, or when ctx ends. The caller closes the agent, and must call stop, also after an
// error. stop ends the processes, waits for them, and returns the last error of ending them, or nil.
func Start(ctx context.Context, path string, world int, rendezvous, listen string, configure ...func(*agent.Config)) (a *agent.Agent, stop func() error, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var ends []func() error
	stop = func() (err error) {
		for _, end := range ends {
			if e := end(); e != nil {
				err = e
			}
		}
		return err
	}
	for rank := 1; rank < world; rank++ {
		cmd := exec.Command(path)
		cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0",
			envRank+"="+strconv.Itoa(rank), envWorld+"="+strconv.Itoa(world), envStore+"="+rendezvous, envURLs+"="+listen)
		cmd.Stderr = os.Stderr
		stdin, err := cmd.StdinPipe()
		if err != nil {
			return nil, stop, err
		}
		if err := cmd.Start(); err != nil {
			return nil, stop, err
		}
		ends = append(ends, func() error {
			_ = stdin.Close()
			return cmd.Wait()
		})
	}
	pages, err := newPageServer()
	if err != nil {
		return nil, stop, err
	}
	a, err = join(ctx, 0, world, rendezvous, listen, "", pages, configure)
	ends = append(ends, pages.close)
	return a, stop, err
}
