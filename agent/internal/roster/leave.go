package roster

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
)

// depart notes that a member of a complete group has left, and ends the group if
// it was the last. Once the first is done the rest is not worth an error: whoever
// joins next does it as well.
func (v *visit) depart(ctx context.Context, g *gate, rank int) error {
	if err := v.set(ctx, v.goneKey(g.gen, rank), mark); err != nil {
		return err
	}
	if all, err := v.allGone(ctx, g); all && err == nil {
		_ = v.end(ctx, g)
	}
	return nil
}

// allGone returns whether all have left.
func (v *visit) allGone(ctx context.Context, g *gate) (bool, error) {
	return v.every(ctx, g.world, func(rank int) string { return v.goneKey(g.gen, rank) }, func(int, []byte) error { return nil })
}

// end closes a complete group that all have left.
func (v *visit) end(ctx context.Context, g *gate) error {
	to := g.next()
	to.phase = ended
	won, err := v.change(ctx, g, to)
	if !won || err != nil {
		return err
	}
	err = v.set(ctx, v.overKey(g.gen), mark)
	v.sweep(ctx, g)
	return err
}

// leaving returns whether a complete group is about to end or has ended, as far as
// one with this rank is concerned: it has left itself, or it never was there and
// others have left.
func (v *visit) leaving(ctx context.Context, g *gate, rank int) (bool, error) {
	from, to := rank, rank+1
	if rank < 0 || rank >= g.world {
		from, to = 0, g.world
	}
	for r := from; r < to; r++ {
		if value, err := v.get(ctx, v.goneKey(g.gen, r)); value != nil || err != nil {
			return value != nil, err
		}
	}
	same, err := v.still(ctx, g)
	return !same, err
}

// outlast waits until a complete group is no more, and ends it if it can.
func (v *visit) outlast(ctx context.Context, g *gate) error {
	over := newBell(v.shelf, v.overKey(g.gen))
	for {
		now, err := v.look(ctx)
		if err != nil || !now.is(complete, g.gen) {
			return err
		}
		all, err := v.allGone(ctx, now)
		switch {
		case err != nil:
			return err
		case all:
			err = v.end(ctx, now)
		default:
			err = over.wait(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// every calls f for each rank with the value of its key, and returns false as soon
// as one has none. Each member has an order of its own: with many of whom most are
// missing it is soon over, and for the last one who comes or goes it is true.
func (v *visit) every(ctx context.Context, world int, key func(rank int) string, f func(rank int, value []byte) error) (bool, error) {
	high, low := binary.LittleEndian.Uint64(v.who[:8]), binary.LittleEndian.Uint64(v.who[8:])
	for _, rank := range rand.New(rand.NewPCG(high, low)).Perm(world) {
		value, err := v.get(ctx, key(rank))
		if value == nil || err != nil {
			return false, err
		}
		if err := f(rank, value); err != nil {
			return false, err
		}
	}
	return true, nil
}
