// Command parameter-server fits a line on a server by three trainers, each with its own samples. One of
// them is killed and replaced while the others go on.
//
//	go run ./examples/parameter-server
//
// starts all four as processes. To run one of them alone, on any host, use the flags.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/rref"
)

// worker is the settings of a worker.
type worker struct {
	name       string
	rendezvous string
	steps      int
	replace    bool
}

func main() {
	var w worker
	flag.StringVar(&w.name, "name", "", "name of this worker: server, which ends with its stdin, or any other for a trainer; without it all are started")
	flag.StringVar(&w.rendezvous, "rendezvous", "tcp://127.0.0.1:29500", "URL of the store where the workers meet, which the server serves")
	flag.IntVar(&w.steps, "steps", 400, "number of steps of a trainer")
	flag.BoolVar(&w.replace, "replace", false, "replace a trainer of this name that has died")
	flag.Parse()
	var err error
	switch w.name {
	case "":
		err = startAll(w.rendezvous, os.Stdout)
	case "server":
		err = w.serve(context.Background(), os.Stdin, os.Stdout)
	default:
		err = w.train(context.Background(), os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "parameter-server:", err)
		os.Exit(1)
	}
}

// startAll runs all workers as processes: trainer2 is killed after its first steps, and started again.
func startAll(rendezvous string, out io.Writer) error {
	server, err := start("server", rendezvous)
	if err != nil {
		return err
	}
	if _, err := server.lines.ReadString('\n'); err != nil { // it is ready
		return errors.Join(err, server.cmd.Wait())
	}
	var trainers []*process
	defer func() {
		for _, p := range append(trainers, server) {
			_ = p.cmd.Process.Kill() // it has ended, unless there was an error
		}
	}()
	for _, args := range [][]string{{"trainer1"}, {"trainer2", "-steps", strconv.Itoa(math.MaxInt)}, {"trainer3"}} {
		p, err := start(args[0], rendezvous, args[1:]...)
		if err != nil {
			return err
		}
		trainers = append(trainers, p)
	}
	line, err := trainers[1].lines.ReadString('\n')
	if err == nil {
		err = trainers[1].cmd.Process.Kill()
	}
	if err != nil {
		return err
	}
	_ = trainers[1].cmd.Wait() // it was killed
	fmt.Fprint(out, line, "trainer2 was killed\n")
	if trainers[1], err = start("trainer2", rendezvous, "-replace"); err != nil {
		return err
	}
	for _, p := range trainers {
		err = errors.Join(err, p.print(out))
	}
	return errors.Join(err, server.stdin.Close(), server.print(out))
}

// serve joins the group as the server, until in ends, and prints the line to out.
func (w *worker) serve(ctx context.Context, in io.Reader, out io.Writer) error {
	m, err := newModel()
	if err != nil {
		return err
	}
	a, err := w.join(ctx, 0, getModel.Serve(func(ctx context.Context, _ agent.None) (*rref.Ref[*Model], error) {
		return rref.Own(agent.FromContext(ctx), m), nil
	}))
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "ready")
	_, err = io.Copy(io.Discard, in)
	fmt.Fprintln(out, "the server has", m)
	return errors.Join(err, a.Close())
}

// train joins the group as a trainer, and trains the model of the server.
func (w *worker) train(ctx context.Context, out io.Writer) error {
	a, err := w.join(ctx, -1)
	if err != nil {
		return err
	}
	model, err := getModel.Call(ctx, a, "server", agent.None{})
	for i := 1; i <= w.steps && err == nil; i++ {
		if err = step(ctx, a, model); err == nil && i == 10 {
			fmt.Fprintln(out, w.name, "has made 10 steps")
		}
	}
	if err != nil {
		return errors.Join(err, a.Close())
	}
	return errors.Join(model.Release(ctx), a.Shutdown(ctx))
}

// join joins the group with that rank, or the lowest free one if it is negative.
func (w *worker) join(ctx context.Context, rank int, funcs ...agent.Served) (*agent.Agent, error) {
	methods := rref.Methods{predict.Serve((*Model).Predict), update.Serve((*Model).Update)}
	return agent.Join(ctx, agent.Config{
		Name: w.name, Rank: rank, Rendezvous: w.rendezvous, Replace: w.replace, Funcs: funcs,
		Extensions: []agent.Extension{rref.New(rref.Options{Methods: methods}), dist.New(dist.Options{})},
	})
}
