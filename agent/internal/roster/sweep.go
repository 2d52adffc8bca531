package roster

import "context"

// sweep removes the keys of a generation of which nothing can become any more, as
// it was last, and the bells of the one before, for which nobody waits any more.
// What it does not reach stays, and does no harm.
func (v *visit) sweep(ctx context.Context, g *gate) {
	keys := []string{v.overKey(g.gen - 1), v.decidedKey(g.gen - 1), v.toldKey(g.gen, toldDynamic)}
	for _, name := range v.claimed(ctx, g) {
		keys = append(keys, v.nameKey(g.gen, name))
	}
	if g.phase == complete {
		keys = append(keys, v.listKey(g.gen, g.lister))
	}
	for r := range g.world {
		keys = append(keys, v.rankKey(g.gen, r), v.goneKey(g.gen, r), v.toldKey(g.gen, toldRank(r)))
	}
	for _, key := range keys {
		if v.drop(ctx, key) != nil {
			return
		}
	}
}

// claimed returns the names that were claimed in a generation, as far as the store
// still tells.
func (v *visit) claimed(ctx context.Context, g *gate) (names []string) {
	if g.phase == complete {
		value, err := v.get(ctx, v.listKey(g.gen, g.lister))
		if err != nil {
			return nil
		}
		members, _ := decodeList(value, g.world) // what is damaged has no names
		for _, m := range members {
			names = append(names, m.Name)
		}
		return names
	}
	for r := range g.world {
		value, err := v.get(ctx, v.rankKey(g.gen, r))
		if err != nil {
			return names
		}
		if m, err := decodeEntry(value, r); err == nil {
			names = append(names, m.Name)
		}
	}
	return names
}
