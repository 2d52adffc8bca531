package rref_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/rref"
)

// forged is the encoding of a reference with chosen contents.
type forged struct {
	owner       agent.Incarnation
	name        string
	rank, kind  uint64
	child       []byte
	epoch, last uint64
}

func (*forged) TensorpipeName() string { return "rref.Ref" }

func (f *forged) AppendTensorpipe(e *codec.Encoder) error {
	e.WriteBytes(f.owner[:])
	e.WriteString(f.name)
	for _, n := range []uint64{f.rank, 0, 0, f.kind} {
		e.WriteUint(n)
	}
	e.WriteBytes(f.child)
	e.WriteBytes(f.child)
	for _, n := range []uint64{f.epoch, 0, f.last} {
		e.WriteUint(n)
	}
	return nil
}

func (*forged) ParseTensorpipe(*codec.Decoder) error { return errors.New("never received") }

var fetchForged = agent.NewFunc[*forged, int]("test.fetch")

// TestHostileMember checks that references which another member has forged are rejected, and have no
// effect on those of the worker that receives them.
func TestHostileMember(t *testing.T) {
	id := make([]byte, 16)
	for name, c := range map[string]struct {
		forge func(f *forged, g *group, victim *rref.Ref[int])
		want  error
	}{
		"the id of another reference": {func(f *forged, _ *group, victim *rref.Ref[int]) {
			fork := rref.ForkOf(victim)
			f.child = fork[:]
		}, agent.ErrProtocol},
		"another owner":    {func(f *forged, g *group, _ *rref.Ref[int]) { f.owner = g.agents[0].Incarnation() }, agent.ErrProtocol},
		"the receiver's":   {func(f *forged, g *group, _ *rref.Ref[int]) { f.owner = g.agents[1].Incarnation() }, agent.ErrProtocol},
		"no such lease":    {func(f *forged, g *group, _ *rref.Ref[int]) { f.owner, f.kind = g.agents[1].Incarnation(), 1 }, rref.ErrFenced},
		"no owner":         {func(f *forged, _ *group, _ *rref.Ref[int]) { f.kind = 1 }, rref.ErrNoValue},
		"unknown kind":     {func(f *forged, _ *group, _ *rref.Ref[int]) { f.kind = 9 }, agent.ErrProtocol},
		"a long id":        {func(f *forged, _ *group, _ *rref.Ref[int]) { f.child = make([]byte, 17) }, agent.ErrProtocol},
		"a short id":       {func(f *forged, _ *group, _ *rref.Ref[int]) { f.child = nil }, agent.ErrProtocol},
		"a rank too large": {func(f *forged, _ *group, _ *rref.Ref[int]) { f.rank = 1 << 40 }, agent.ErrProtocol},
		"nobody's value": {func(f *forged, _ *group, _ *rref.Ref[int]) {
			f.owner, f.name, f.kind = agent.Incarnation{1}, "nobody", 3
		}, agent.ErrNoWorker},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, 3, nil, func(t *testing.T, g *group) {
				victim := rref.Remote(t.Context(), g.agents[1], "worker0", double, 21)
				_, err := victim.Created().Wait(t.Context())
				require.NoError(t, err)
				f := &forged{owner: g.agents[2].Incarnation(), name: "worker2", rank: 2, kind: 2, child: id, epoch: 1 << 60}
				c.forge(f, g, victim)
				_, err = fetchForged.Call(t.Context(), g.agents[2], "worker1", f)
				require.ErrorIs(t, err, c.want)
				v, err := victim.ToHere(t.Context())
				require.NoError(t, err)
				require.Equal(t, 42, v)
				require.NoError(t, victim.Release(t.Context()))
				g.requireEmpty()
			})
		})
	}
}

// TestManyOwners checks that a message cannot start a goroutine for each of very many owners.
func TestManyOwners(t *testing.T) {
	many, forgedMany := agent.NewFunc[[]*rref.Ref[int], int]("test.many"), agent.NewFunc[[]*forged, int]("test.many")
	run(t, 2, func(_ int, c *agent.Config, _ *rref.Options) {
		c.Funcs = append(slices.Clone(c.Funcs), many.Serve(func(context.Context, []*rref.Ref[int]) (int, error) { return 0, nil }))
	}, func(t *testing.T, g *group) {
		forge := func(owners int) (all []*forged) {
			for i := range owners {
				number := []byte{byte(i), byte(i >> 8), 14: byte(owners), 15: 1}
				all = append(all, &forged{owner: agent.Incarnation(number), name: "nobody", kind: 3, child: number})
			}
			return all
		}
		_, err := forgedMany.Call(t.Context(), g.agents[0], "worker1", forge(1025))
		require.ErrorIs(t, err, agent.ErrProtocol)
		require.ErrorContains(t, err, "1025 workers")
		_, err = forgedMany.Call(t.Context(), g.agents[0], "worker1", forge(1024))
		require.ErrorIs(t, err, agent.ErrNoWorker)
		g.requireEmpty()
	})
}
