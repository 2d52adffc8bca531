package dist_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/procgroup"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
	"github.com/tensorpipe-go/tensorpipe/rref"
)

// killable is a worker in a process of its own.
type killable struct {
	m     *procgroup.Member
	a     *agent.Agent
	graph *dist.Autograd
}

// TestKilled kills a process while it computes gradients: the last worker of a pass, one in the middle, and the
// one that has begun it. The error names the worker, and the others soon have no Context left: in a dynamic
// group once the worker is removed or replaced.
func TestKilled(t *testing.T) {
	short.Skip(t, "starts and kills processes")
	for name, test := range map[string]struct {
		how     string
		victim  int
		dynamic bool
		then    string
	}{
		"last":             {"last", 3, false, ""},
		"middle":           {"middle", 2, false, ""},
		"origin":           {"origin", 1, false, ""},
		"origin, removed":  {"origin", 1, true, "remove"},
		"origin, replaced": {"origin", 1, true, "replace"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of the time is waiting
			group := procgroup.Start(t, 4, func(m *procgroup.Member) error { return runKillable(m, test.dynamic) })
			for rank := range 4 {
				group.WaitFor(rank, "joined")
			}
			group.Send(0, test.how)
			group.WaitFor(test.victim, "computes")
			group.Kill(test.victim)
			require.Contains(t, group.ReadLine(0), fmt.Sprint("worker", test.victim))
			switch test.then {
			case "remove":
				group.Send(0, "remove")
				group.WaitFor(0, "removed")
			case "replace":
				group.Restart(test.victim)
				group.WaitFor(test.victim, "joined")
			}
			for rank := range 4 {
				if rank != test.victim {
					group.Send(rank, "check")
					group.WaitFor(rank, "empty")
				}
			}
		})
	}
}

// runKillable is a process of the test. It executes the commands of the test.
func runKillable(m *procgroup.Member, dynamic bool) error {
	world, lost := 4, time.Second
	if dynamic {
		world, lost = 0, time.Hour
	}
	k := &killable{m: m, graph: dist.New(dist.Options{LostAfter: lost})}
	c := agent.Config{
		Name: m.Name(), Rank: m.Rank, WorldSize: world, Rendezvous: m.Store, Replace: m.Restarts > 0, Logger: slog.New(slog.DiscardHandler),
		Extensions: []agent.Extension{rref.New(rref.Options{Methods: methods()}), k.graph}, Funcs: append(functions(), k.functions()...),
	}
	a, err := agent.Join(m.Context(), c)
	if err != nil {
		return err
	}
	k.a = a
	defer a.Close()
	m.Send("joined")
	for {
		line, err := m.ReadLine()
		if err != nil {
			return nil // the test has ended
		}
		switch line {
		case "remove":
			if err := a.Remove(m.Context(), "worker1"); err != nil {
				return err
			}
			m.Send("removed")
		case "check":
			if err := k.awaitEmpty(m.Context()); err != nil {
				return err
			}
			m.Send("empty")
		default:
			m.Send(fmt.Sprint("the error is: ", k.begin(m.Context(), line)))
		}
	}
}

var (
	blocks  = agent.NewFunc[variable, variable]("killed.blocks")
	through = agent.NewFunc[variable, variable]("killed.through")
	ownPass = agent.NewFunc[agent.None, agent.None]("killed.ownPass")
)

func (k *killable) functions() agent.Funcs {
	block := func(ctx context.Context) error {
		k.m.Send("computes")
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return agent.Funcs{
		blocks.Serve(func(ctx context.Context, x variable) (variable, error) { return identity(ctx, x, block) }),
		through.Serve(func(ctx context.Context, x variable) (variable, error) {
			y, err := total.Call(ctx, agent.FromContext(ctx), "worker3", x)
			if err != nil {
				return nil, err
			}
			return identity(ctx, y, block)
		}),
		ownPass.Serve(func(ctx context.Context, _ agent.None) (none agent.None, err error) {
			a := agent.FromContext(ctx)
			ctx, c, err := dist.WithContext(ctx, a)
			if err != nil {
				return none, err
			}
			defer c.Close()
			z, err := relay.Call(ctx, a, "worker2", viaArgs{[]string{"worker3", "worker0"}, pair{parameter(1, 1), parameter(2, 1)}})
			if err != nil {
				return none, err
			}
			if z, err = identity(ctx, z, block); err != nil {
				return none, err
			}
			return none, c.Backward(ctx, z)
		}),
	}
}

// begin begins the pass in which a process is killed, and returns its error.
func (k *killable) begin(ctx context.Context, how string) error {
	if how == "origin" {
		_, err := ownPass.Call(ctx, k.a, "worker1", agent.None{})
		return err
	}
	ctx, c, err := dist.WithContext(ctx, k.a)
	if err != nil {
		return err
	}
	defer c.Close()
	x, fn, to := parameter(2, 1), blocks, agent.To("worker3")
	if how == "middle" {
		fn, to = through, "worker2"
	}
	z, err := fn.Call(ctx, k.a, to, x)
	if err != nil {
		return err
	}
	if z, err = total.Call(ctx, k.a, "worker1", z); err != nil { // gradients come first to another worker
		return err
	}
	err = c.Backward(ctx, z)
	if _, failed := c.Gradient(x); !errors.Is(failed, autograd.ErrNoGradient) {
		return fmt.Errorf("there is a gradient, and the error is %w", err)
	}
	return err
}

// awaitEmpty waits until the worker has no Context.
func (k *killable) awaitEmpty(ctx context.Context) error {
	for !maps.Equal(empty, k.graph.Metrics()) {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.NewTimer(time.Millisecond).C:
		}
	}
	return nil
}
