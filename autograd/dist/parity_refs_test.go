package dist_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

type variableRef = *rref.Ref[variable]

// refArgs is a reference to a tensor, and one to add to it, by a call of Owner.
type refArgs struct {
	Owner agent.To
	X     variableRef
	Y     variable
}

// ownerArgs is a reference to a leaf of the callee, and the gradient that it should have.
type ownerArgs struct {
	ID   dist.ID
	X    variableRef
	Want variable
}

// trainerArgs is a reference to the tensor of a parameter server, and one to add to it.
type trainerArgs struct {
	X        variableRef
	Y        variable
	Server   agent.To
	Distance int  // of the trainer from the server
	Sparse   bool // both tensors are
}

var (
	newSparse       = agent.NewFunc[agent.None, variable]("build_sparse_tensor")
	newOnes         = agent.NewFunc[agent.None, variable]("create_tensor")
	refAdd          = agent.NewFunc[refArgs, variable]("my_rref_add")
	nestedRefAdd    = agent.NewFunc[refArgs, variable]("my_nested_rref_add")
	compareOwner    = agent.NewFunc[ownerArgs, bool]("compare_owner_value")
	runTrainer      = agent.NewFunc[trainerArgs, agent.None]("run_trainer")
	runNamedTrainer = agent.NewFunc[trainerArgs, agent.None]("run_trainer_torchscript")
	checkDone       = agent.NewFunc[int, agent.None]("check_rpc_done")
)

// newParameter returns the function that makes a leaf of the kind k on another worker.
func (k kind) newParameter() agent.Func[agent.None, variable] {
	if k.dense {
		return newOnes
	}
	return newSparse
}

// refFunctions returns the functions that take references, for a worker with the marks m.
func refFunctions(m *marks) agent.Funcs {
	return agent.Funcs{
		newSparse.Serve(func(context.Context, agent.None) (variable, error) { return sparseLeaf[float32](true), nil }),
		newOnes.Serve(func(context.Context, agent.None) (variable, error) { return parameter(1, 3, 3), nil }),
		refAdd.Serve(func(ctx context.Context, v refArgs) (variable, error) {
			x, err := v.X.Local()
			if err != nil {
				return nil, err
			}
			if err := v.X.Release(ctx); err != nil {
				return nil, err
			}
			return autograd.Add(ctx, x, v.Y)
		}),
		nestedRefAdd.Serve(func(ctx context.Context, v refArgs) (variable, error) {
			y, err := refAdd.Call(ctx, agent.FromContext(ctx), v.Owner, v)
			if err != nil {
				return nil, err
			}
			return y, v.X.Release(ctx)
		}),
		compareOwner.Serve(compareGradient),
		runTrainer.Serve(train),
		runNamedTrainer.Serve(trainNamed),
		agent.ReflectFunc("create_torchscript_tensor", func() variable { return parameter(1, 3, 3) }),
		agent.ReflectFunc("my_script_ref_add", func(ctx context.Context, f variableRef, y variable) (variable, error) {
			x, err := f.ToHere(ctx)
			if err != nil {
				return nil, err
			}
			if err := f.Release(ctx); err != nil {
				return nil, err
			}
			return autograd.Add(ctx, x, y)
		}),
		checkDone.Serve(func(ctx context.Context, distance int) (agent.None, error) {
			_, err := m.await(ctx, distance)
			return agent.None{}, err
		}),
	}
}

// compareGradient reports whether the gradient of v.X, a leaf of this worker, is v.Want.
func compareGradient(ctx context.Context, v ownerArgs) (bool, error) {
	c, err := v.ID.Context(agent.FromContext(ctx))
	if err != nil {
		return false, err
	}
	x, err := v.X.Local()
	if err != nil {
		return false, err
	}
	g, err := c.Gradient(x)
	if err != nil {
		return false, err
	}
	if err := v.X.Release(ctx); err != nil {
		return false, err
	}
	if (v.Want.Sparse() == nil) != (g.Sparse() == nil) {
		return false, nil
	}
	want, err := v.Want.Value().ToDense()
	if err != nil {
		return false, err
	}
	got, err := g.ToDense()
	if err != nil {
		return false, err
	}
	return tensor.Equal(want, got)
}

// localGradients adds t1 and t2, leaves of the kind k, on this worker, and returns their gradients.
func localGradients(t require.TestingT, ctx context.Context, k kind, t1, t2 variable) (g1, g2 autograd.Value) {
	y, err := autograd.Add(ctx, t1, t2)
	require.NoError(t, err)
	require.NoError(t, autograd.Backward(ctx, []variable{k.sum(t, ctx, y)}))
	return t1.Grad(), t2.Grad()
}

// backwardRef makes a tensor on the worker owner, and has callee add another one to it: by a reference to
// the sum, which is then fetched. If callee is not the owner, it has the owner add.
func backwardRef(t require.TestingT, w *worker, k kind, callee, owner agent.To) {
	t1, t2 := k.leaf(true), k.leaf(true)
	want1, want2 := localGradients(t, w.ctx, k, t1, t2)
	w.inContext(t, func(ctx context.Context, c *dist.Context) {
		x := rref.Remote(ctx, w.Agent, owner, k.newParameter(), agent.None{})
		fn := nestedRefAdd
		if callee == owner {
			fn = refAdd
		}
		y := rref.Remote(ctx, w.Agent, callee, fn, refArgs{owner, x, t2})
		ret, err := y.ToHere(ctx)
		require.NoError(t, err)
		pass(t, ctx, c, false, k.sum(t, ctx, ret))

		grads := c.Gradients()
		require.Contains(t, grads, t2)
		requireSame(t, want2, grads[t2])
		same, err := compareOwner.Call(ctx, w.Agent, owner, ownerArgs{c.ID(), x, autograd.New(want1)})
		require.NoError(t, err)
		require.True(t, same)
		require.NoError(t, x.Release(ctx))
		require.NoError(t, y.Release(ctx))
	})
}

// TestParityBackwardRefs has the cases of gradients of tensors to which there are references.
func TestParityBackwardRefs(t *testing.T) {
	bothKinds(t, "test_backward_rref", func(k kind) script {
		return func(t require.TestingT, w *worker) {
			to := w.next()
			backwardRef(t, w, k, to, to)
		}
	})
	bothKinds(t, "test_backward_rref_multi", func(k kind) script {
		return func(t require.TestingT, w *worker) {
			if w.rank > 0 {
				backwardRef(t, w, k, "worker0", "worker0")
			}
		}
	})
	bothKinds(t, "test_backward_rref_nested", func(k kind) script {
		return func(t require.TestingT, w *worker) { backwardRef(t, w, k, w.at(1), w.at(2)) }
	})
}

// train computes gradients of the parameter of v.Server in a Context of this worker, tells the server,
// and waits until the server has looked at them.
func train(ctx context.Context, v trainerArgs) (agent.None, error) {
	return trainWith(ctx, v, func(ctx context.Context, a *agent.Agent) (variable, error) {
		return refAdd.Call(ctx, a, v.Server, refArgs{X: v.X, Y: v.Y})
	})
}

// trainNamed does what train does, and calls a function by its name.
func trainNamed(ctx context.Context, v trainerArgs) (agent.None, error) {
	return trainWith(ctx, v, func(ctx context.Context, a *agent.Agent) (variable, error) {
		return agent.One[variable](a.Invoke(ctx, v.Server, "my_script_ref_add", v.X, v.Y))
	})
}

// trainWith is train, with the call add.
func trainWith(ctx context.Context, v trainerArgs, add func(context.Context, *agent.Agent) (variable, error)) (none agent.None, err error) {
	a := agent.FromContext(ctx)
	ctx, c, err := dist.WithContext(ctx, a)
	if err != nil {
		return none, err
	}
	defer c.Close()
	y, err := add(ctx, a)
	if err != nil {
		return none, err
	}
	if (y.Sparse() != nil) != v.Sparse {
		return none, fmt.Errorf("the sum is %v, want a sparse one: %v", y, v.Sparse)
	}
	loss, err := autograd.Sum(ctx, y)
	if err != nil {
		return none, err
	}
	if err := c.Backward(ctx, loss); err != nil {
		return none, err
	}
	if _, err := setDone.Call(ctx, a, v.Server, mark{c.ID(), v.Distance}); err != nil {
		return none, err
	}
	if _, err := checkDone.Call(ctx, a, v.Server, 0); err != nil {
		return none, err
	}
	return none, v.X.Release(ctx)
}

// parameterServer has the other workers train a parameter of w with the function trainer, each in a
// Context of its own, and requires the gradients that each has left. All four workers do so at once.
// create makes the parameter on w.
func parameterServer(k kind, create func(w *worker) variableRef, trainer agent.Func[trainerArgs, agent.None]) script {
	return func(t require.TestingT, w *worker) {
		t1, t2 := k.leaf(true), k.leaf(true)
		want, _ := localGradients(t, w.ctx, k, t1, t2)
		x := create(w)
		var trainers []*agent.Future[agent.None]
		working, cancel := context.WithCancelCause(w.ctx)
		defer cancel(nil)
		for distance := 1; distance < parityWorld; distance++ {
			v := trainerArgs{X: x, Y: t2, Server: w.Self().To(), Distance: distance, Sparse: !k.dense}
			f := trainer.Go(w.ctx, w.Agent, w.at(distance), v)
			require.NoError(t, f.OnDone(func(f *agent.Future[agent.None]) {
				if err := f.Err(); err != nil {
					cancel(err)
				}
			}))
			trainers = append(trainers, f)
		}
		for distance := 1; distance < parityWorld; distance++ {
			_, err := w.marks.await(working, distance)
			require.NoError(t, err)
		}
		for distance := 1; distance < parityWorld; distance++ {
			grads := w.marked(t, distance).Gradients()
			parameter, err := x.ToHere(w.ctx)
			require.NoError(t, err)
			require.Contains(t, grads, parameter)
			requireSame(t, want, grads[parameter])
		}
		_, err := w.marks.set(w.ctx, mark{Distance: 0})
		require.NoError(t, err)
		for _, f := range trainers {
			_, err := f.Wait(w.ctx)
			require.NoError(t, err)
		}
		require.NoError(t, x.Release(w.ctx))
	}
}

// TestParityTrainers has the cases of parameter servers.
func TestParityTrainers(t *testing.T) {
	bothKinds(t, "test_trainer_ps", func(k kind) script {
		return parameterServer(k, func(w *worker) variableRef {
			return rref.Remote(w.ctx, w.Agent, w.Self().To(), k.newParameter(), agent.None{})
		}, runTrainer)
	})
	inOneProcess(t, "dist_autograd/DistAutogradTest.test_trainer_ps_torchscript_functions", parameterServer(dense, func(w *worker) variableRef {
		return rref.RemoteInvoke[variable](w.ctx, w.Agent, w.Self().To(), "create_torchscript_tensor")
	}, runNamedTrainer))
}
