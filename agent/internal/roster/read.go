package roster

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
)

// Read returns the members of the group, ordered by rank, as the store has them, without joining
// it. Members of a static group that have left are not among them. The list is empty if all have
// left. The error, an [*Error], matches [ErrNoGroup] if there is no such group, or a static one
// still waits for members or has failed. Otherwise it is that of ctx, of the store or of decoding.
func Read(ctx context.Context, s store.Store, group string) ([]Member, error) {
	v := newGroupAccess(s, group, Incarnation{})
	members, err := v.readMembers(ctx)
	if err != nil {
		return nil, &Error{Op: "read", Group: group, Err: err}
	}
	return members, nil
}

func (v *groupAccess) readMembers(ctx context.Context) ([]Member, error) {
	for {
		g, err := v.readState(ctx)
		switch {
		case err != nil:
			return nil, err
		case g.phase == dynamic:
			return g.members, nil
		case g.phase == ended:
			return nil, nil
		case g.phase != complete:
			return nil, ErrNoGroup
		}
		members, err := v.members(ctx, g)
		if err != nil {
			return nil, err
		}
		if members == nil {
			continue // the state has changed
		}
		var present []Member
		for _, m := range members {
			left, err := v.get(ctx, v.leftKey(g.gen, m.Rank))
			if err != nil {
				return nil, err
			}
			if left == nil {
				present = append(present, m)
			}
		}
		return present, nil
	}
}
