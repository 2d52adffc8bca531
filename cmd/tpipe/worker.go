package main

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// worker is the command that serves the built-in operators to a group.
type worker struct {
	groupFlags
	rank, world int
	serve       bool
	replace     bool
}

func workerEntry() entry {
	return entry{
		name:    "worker",
		usage:   "[-name NAME] [-rendezvous URL] [flags]",
		summary: "join a group and serve the built-in tensor operators to it",
		help: `Joins a group of workers and serves the built-in tensor operators, by their
ATen names, until a signal ends it. Call them with tpipe call.

Without -world the group is dynamic: workers join and leave at any time. One that was
killed has not left: started again under its name with -replace it has its place again.
With -world N the group has N workers with the ranks 0 to N-1, and the command waits
until all of them are there. One worker serves the store of a tcp:// URL: the one with
-store, or the one of rank 0 where -world is given. env:// takes rank, world size and the
store's address from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun
sets them.

The first line printed is "ready as" and the worker's rank and name.`,
		make: func() command { return &worker{} },
	}
}

func (w *worker) flags(fs *flag.FlagSet) {
	w.groupFlags.flags(fs, "worker0")
	fs.IntVar(&w.rank, "rank", -1, "rank of this `worker`; -1 is the lowest that is free, in a dynamic group")
	fs.IntVar(&w.world, "world", 0, "`number` of workers of a static group; 0 is a dynamic one")
	fs.BoolVar(&w.serve, "store", false, "serve the store of a tcp:// -rendezvous")
	fs.BoolVar(&w.replace, "replace", false, "in a dynamic group, take the place of a worker of the same -name that has died")
}

func (w *worker) run(ctx context.Context, s streams) error {
	if w.world > 0 && (w.rank < 0 || w.rank >= w.world) {
		return usageErrorf("-rank %d: want 0 to %d for -world %d", w.rank, w.world-1, w.world)
	}
	if w.world > 0 && w.replace {
		return usageErrorf("-replace: workers of a static group cannot be replaced, leave out -world")
	}
	c, err := w.config(s, w.rank, w.world, w.serve || w.world > 0 && w.rank == 0)
	if err != nil {
		return err
	}
	c.Replace = w.replace
	a, err := w.join(ctx, c)
	if err != nil {
		return interrupted(ctx, err)
	}
	if _, err := fmt.Fprintf(s.out, "ready as %v\n", a.Self()); err != nil {
		return errors.Join(err, a.Close())
	}
	<-ctx.Done()
	return a.Close()
}

// join joins within the time that the user grants.
func (f *groupFlags) join(ctx context.Context, c agent.Config) (*agent.Agent, error) {
	ctx, cancel := context.WithTimeout(ctx, f.wait)
	defer cancel()
	return agent.Join(ctx, c)
}
