// Command refs fits a line with a parameter server: the model stays on the worker "server", two workers
// train it through references, each with its own samples, and a fourth one evaluates it.
//
//	go run ./examples/refs
//
// starts all four as processes of its own. To run one of them alone, on any host, use the flags.
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
	"github.com/tensorpipe-go/tensorpipe/rref"
)

var workers = []string{"server", "trainer1", "trainer2", "evaluator"} // by rank

// Job asks a worker to train a model with the samples of y = 3x - 2 at X.
type Job struct {
	Model *rref.Ref[*Model]
	X     []float64
}

// The functions and methods as all workers know them.
var (
	newModel = agent.NewFunc[agent.None, *Model]("refs.newModel")
	train    = agent.NewFunc[Job, agent.None]("refs.train")
	evaluate = agent.NewFunc[*rref.Ref[*Model], string]("refs.evaluate")
	read     = rref.NewMethod[*Model, agent.None, Line]("Read")
	update   = rref.NewMethod[*Model, Line, agent.None]("Update")
)

func main() {
	rank := flag.Int("rank", -1, "rank of this worker, 0 to 3; without it all workers are started")
	rendezvous := flag.String("rendezvous", "tcp://127.0.0.1:29500", "URL of the store where the workers meet; rank 0 serves it")
	flag.Parse()
	var err error
	if *rank < 0 {
		err = startAll(*rendezvous)
	} else {
		err = run(context.Background(), *rank, *rendezvous, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "refs:", err)
		os.Exit(1)
	}
}

// startAll runs all workers as processes, and returns when they have ended. The error is that of the
// processes.
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

// run joins the group as the worker with that rank. Rank 1 creates the model, trains it together with
// rank 2, has rank 3 evaluate it, and prints the result to out. The error is that of joining, of a
// call or of leaving, which is rref.ErrLeak if a reference is left.
func run(ctx context.Context, rank int, rendezvous string, out io.Writer) error {
	a, err := agent.Join(ctx, agent.Config{
		Name: workers[rank], Rank: rank, WorldSize: len(workers), Rendezvous: rendezvous,
		Funcs:      agent.Funcs{newModel.Serve(doNewModel), train.Serve(doTrain), evaluate.Serve(doEvaluate)},
		Extensions: []agent.Extension{rref.New(rref.Options{Methods: rref.Methods{read.Serve((*Model).Read), update.Serve((*Model).Update)}})},
	})
	if err != nil {
		return err
	}
	if rank == 1 {
		model := rref.Remote(ctx, a, "server", newModel, agent.None{}) // returns at once, the model stays there
		half := train.Go(ctx, a, "trainer2", Job{model, []float64{-1, -0.5}})
		_, err := fit(ctx, Job{model, []float64{0.5, 1}}) // at the same time
		_, err2 := half.Wait(ctx)
		text, err3 := evaluate.Call(ctx, a, "evaluator", model)
		if err := errors.Join(err, err2, err3); err != nil {
			return errors.Join(err, a.Close())
		}
		fmt.Fprintf(out, "the model on %s is %s\n", model.OwnerName(), text)
		return errors.Join(model.Release(ctx), a.Shutdown(ctx)) // the server drops the model with the last reference
	}
	return a.Shutdown(ctx)
}
