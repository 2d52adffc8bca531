package rref_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/cudagroup"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// While both workers hold back the work of all their streams, values are made and fetched from references, and methods
// called, and no call of the driver waits. After the release each result has the right bytes.
func TestHostNeverWaitsInReferences(t *testing.T) {
	cudagroup.Run(t, 2, cudagroup.Case{ID: "references", Run: func(w *cudagroup.Worker) {
		withModels(w, func(c *agent.Config) { setMap(w, c, w.Next(1), 0, 1) }, func(m cudaMember) {
			requireHeldValues(m, fetchHeld(m)) // opens the memory of the other worker
			var fetched []*tensor.Tensor
			m.WhileHeld(func() {
				fetched = fetchHeld(m)
				for _, x := range fetched {
					m.RequireQueued(x)
				}
			})
			requireHeldValues(m, fetched)
			m.RequireChannel("cuda_ipc", m.Next(1), cudagroup.GPU(0), cudagroup.GPU(1))
		})
	}})
}

// heldLen is the number of elements of the tensors in TestHostNeverWaitsInReferences.
const heldLen = 1 << 12

// fetchHeld fetches a sum at the other worker twice, and returns both, and the result of a method of another reference.
// Then it changes the argument and releases the references.
func fetchHeld(m cudaMember) []*tensor.Tensor {
	ctx, to := m.Context(), agent.To(m.Next(1))
	x := m.Full(1, cudagroup.GPU(0), heldLen)
	f := rref.RemoteOp[*tensor.Tensor](ctx, m.agent, to, "aten::add", x, 1)
	var fetched []*tensor.Tensor
	for range 2 {
		y, err := f.ToHere(ctx)
		require.NoError(m, err)
		fetched = append(fetched, y)
	}
	wrapper := rref.Remote(ctx, m.agent, to, newTensorWrapper, x)
	_, err := increase.Call(ctx, wrapper, 1)
	require.NoError(m, err)
	sum, err := sumOfWrapper.Call(ctx, wrapper, agent.None{})
	require.NoError(m, err)
	require.NoError(m, m.Engine.FillInPlace(ctx, x, ops.Int(99)))
	require.NoError(m, f.Release(ctx))
	require.NoError(m, wrapper.Release(ctx))
	return append(fetched, sum)
}

// requireHeldValues requires the bytes of what fetchHeld returns.
func requireHeldValues(m cudaMember, fetched []*tensor.Tensor) {
	m.RequireFull(fetched[0], 2, cudagroup.GPU(0), heldLen)
	m.RequireFull(fetched[1], 2, cudagroup.GPU(0), heldLen)
	m.RequireFull(fetched[2], 2*heldLen, cudagroup.GPU(0))
}
