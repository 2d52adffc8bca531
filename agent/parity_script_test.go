package agent_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/internal/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/team"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// parityWorld is how many workers upstream's tests have.
const parityWorld = 4

// script is what each worker of a group does, in this process or in one of its own.
type script func(t require.TestingT, w worker)

type worker struct {
	*agent.Agent
	ctx context.Context
	n   int // its rank and one more, as upstream's tests have it
}

// next is the worker n ranks further on.
func (w worker) next(n int) agent.To { return agent.Rank((w.Self().Rank + n) % parityWorld) }

// nextName is next as errors call it.
func (w worker) nextName() string { return fmt.Sprintf("worker%d", (w.Self().Rank+1)%parityWorld) }

// together runs a parity case with four workers in this process.
func together(t *testing.T, id string, s script) {
	t.Helper()
	parity.Case(t, id, func(t *testing.T) {
		for rank, a := range startGroup(t, parityWorld, serveParity) {
			s(t, worker{Agent: a, ctx: t.Context(), n: rank + 1})
		}
	})
}

// apart runs a parity case with four processes.
func apart(t *testing.T, id string, s script) {
	t.Helper()
	parity.Case(t, id, func(t *testing.T) {
		crew := team.Start(t, parityWorld, func(m *team.Member) error { return liveApart(m, s) })
		for rank := range parityWorld {
			crew.Await(rank, "done")
		}
		crew.TellAll("end")
		crew.Wait()
	})
}

func liveApart(m *team.Member, s script) error {
	c := agent.Config{Name: m.Name(), Rank: m.Rank, WorldSize: m.World, Rendezvous: m.Store, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	serveParity(m.Rank, &c)
	a, err := agent.Join(m.Context(), c)
	if err != nil {
		return err
	}
	s(panicking{}, worker{Agent: a, ctx: m.Context(), n: m.Rank + 1})
	m.Say("done")
	return errors.Join(m.Await("end"), a.Close())
}

// panicking fails where there is no test.
type panicking struct{}

func (panicking) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (panicking) FailNow()                          { panic("failed") }

// parityRegistry knows the types of the parity tests.
func parityRegistry() *codec.Registry {
	r := codec.NewRegistry()
	for name, sample := range map[string]any{
		"parity.WorkerInfo": agent.WorkerInfo{}, "parity.myClass": myClass{}, "parity.tensorClass": tensorClass{},
		"parity.nested": nested{}, "parity.knownError": &codeError{},
	} {
		if err := r.Register(name, sample); err != nil {
			panic(err)
		}
	}
	if err := r.RegisterError("parity.errQuota", errQuota); err != nil {
		panic(err)
	}
	return r
}

// full is a tensor of that value.
func full(value float32, shape ...int) *tensor.Tensor {
	x, err := tensor.Zeros(tensor.F32, shape...)
	if err == nil {
		err = tensor.Fill(x, value)
	}
	if err != nil {
		panic(err)
	}
	return x
}

func equalTensor(t require.TestingT, want, got *tensor.Tensor) {
	require.NotNil(t, got)
	same, err := tensor.Equal(want, got)
	require.NoError(t, err)
	require.True(t, same, "%v is not %v", got, want)
}
