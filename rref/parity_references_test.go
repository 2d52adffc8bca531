package rref_test

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/torch"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// TestParityReferences checks what a reference itself is: its value here, its owner, its texts and its
// counts.
func TestParityReferences(t *testing.T) {
	inOneProcess(t, "rpc/RpcTest.test_local_rref_no_fork", func(t require.TestingT, w worker) {
		n, err := rref.Own(w.Agent, 35).Local()
		require.NoError(t, err)
		require.Equal(t, 35, n)
		require.Zero(t, w.refs.Metrics()["forks"])
	})
	inProcesses(t, "rpc/RpcTest.test_local_value_not_on_owner", func(t require.TestingT, w worker) {
		f := rref.RemoteOp[*tensor.Tensor](w.ctx, w.Agent, w.next(1), "aten::add", full(1, 1), full(1, 1))
		_, err := f.Local()
		require.ErrorIs(t, err, rref.ErrNotOwner)
		rank, next := w.Self().Rank, w.n%parityWorld
		require.Equal(t, fmt.Sprintf("For UserRRef(rref_id=GloballyUniqueId(created_on=%d, local_id=0), "+
			"fork_id=GloballyUniqueId(created_on=%d, local_id=1)), can't call localValue() on user WorkerInfo(id=%d, name=worker%d). "+
			"Call it on owner WorkerInfo(id=%d, name=worker%d)", rank, rank, rank, rank, next, next), torch.Error(err))
	})
	inOneProcess(t, "rpc/RpcTest.test_owner_equality", func(t require.TestingT, w worker) {
		a, b := rref.Own(w.Agent, 40), rref.Own(w.Agent, 50)
		var others []*rref.Ref[*tensor.Tensor]
		for range 2 {
			f := rref.RemoteOp[*tensor.Tensor](w.ctx, w.Agent, w.next(1), "aten::add", full(1, 1), 1)
			_, err := f.ToHere(w.ctx)
			require.NoError(t, err)
			others = append(others, f)
		}
		otherA, otherB := others[0], others[1]
		same := func(x, y any) bool { return x == y }
		require.False(t, same(a.Owner(), 23))
		require.True(t, same(otherA.Owner(), otherB.Owner()))
		require.False(t, same(a.Owner(), otherA.Owner()))
		require.True(t, same(otherA.Owner(), otherA.Owner()))
		require.True(t, same(a.Owner(), a.Owner()))
		require.True(t, same(a.Owner(), b.Owner()))
		require.True(t, same(a.Owner(), w.Self()))
		m := map[agent.WorkerInfo]any{a.Owner(): a, otherA.Owner(): otherA}
		require.Same(t, a, m[b.Owner()])
		require.Same(t, otherA, m[otherB.Owner()])
		require.Len(t, m, 2)
	})
	inProcesses(t, "rpc/RpcTest.test_rref_str", func(t require.TestingT, w worker) {
		rank := w.Self().Rank
		own := rref.Own(w.Agent, rank)
		require.Equal(t, fmt.Sprintf("OwnerRRef(GloballyUniqueId(created_on=%d, local_id=0))", rank), torch.Reference(own.IsOwner(), own.Label(), own.ForkLabel()))
		require.Equal(t, fmt.Sprintf("rref to own value %d.0", rank), own.String())
		f := rref.RemoteOp[*tensor.Tensor](w.ctx, w.Agent, w.next(1), "aten::add", ones(), 1)
		require.Equal(t, fmt.Sprintf("UserRRef(RRefId = GloballyUniqueId(created_on=%d, local_id=1), "+
			"ForkId = GloballyUniqueId(created_on=%d, local_id=2))", rank, rank), torch.Reference(f.IsOwner(), f.Label(), f.ForkLabel()))
		require.Equal(t, fmt.Sprintf("rref %d.2 to value %d.1 on %s", rank, rank, w.next(1)), f.String())
	})
	inOneProcess(t, "rpc/RpcTest.test_rref_py_pickle_not_supported", func(t require.TestingT, w worker) {
		own := rref.Own(w.Agent, 35)
		data, err := json.Marshal(own)
		require.Empty(t, data)
		var file bytes.Buffer
		for _, err := range []error{err, gob.NewEncoder(&file).Encode(own), gob.NewEncoder(&file).Encode(struct{ Deep []*rref.Ref[int] }{[]*rref.Ref[int]{own}})} {
			require.ErrorIs(t, err, rref.ErrEncoding)
			require.Contains(t, torch.Error(err), "Can not pickle rref in python pickler")
		}
	})
	parity.Case(t, "rpc/RpcTest.test_rref_context_debug_info", func(t *testing.T) {
		g := start(t, parityWorld, serveParity)
		g.each(countedReferences)
		g.finish()
	})
}

// countedReferences is the script of test_rref_context_debug_info: it counts a value of this worker
// before and after the next worker refers to it, and then two values that the worker before this one
// has made here.
func countedReferences(t require.TestingT, w worker) {
	requireInfo := func(owned string) {
		info := torch.ReferenceInfo(w.refs)
		require.Equal(t, owned, info["num_owner_rrefs"])
		require.Equal(t, "0", info["num_pending_users"])
		require.NoError(t, w.Barrier(w.ctx))
	}
	own := rref.Own(w.Agent, w.Self().Rank)
	requireInfo("0")
	_, err := setGlobal.Call(w.ctx, w.Agent, w.next(1), own)
	require.NoError(t, err)
	require.NoError(t, w.Barrier(w.ctx))
	requireInfo("1")
	_, err = clearGlobal.Call(w.ctx, w.Agent, w.next(1), agent.None{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return torch.ReferenceInfo(w.refs)["num_owner_rrefs"] == "0" }, testwait.Limit, time.Millisecond)
	require.NoError(t, w.Barrier(w.ctx))
	var made []*rref.Ref[*tensor.Tensor]
	for range 2 {
		f := rref.RemoteOp[*tensor.Tensor](w.ctx, w.Agent, w.next(1), "aten::add", ones(), 1)
		_, err := f.ToHere(w.ctx)
		require.NoError(t, err)
		_, err = f.Created().Wait(w.ctx)
		require.NoError(t, err)
		made = append(made, f)
	}
	require.NoError(t, w.Barrier(w.ctx))
	requireInfo("2")
	for _, f := range made {
		require.NoError(t, f.Release(w.ctx))
	}
	require.NoError(t, own.Release(w.ctx))
}
