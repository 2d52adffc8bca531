package roster

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
)

// parting is how long a call goes on after its context has ended, at the most, to
// take back what it wrote.
const parting = time.Second

// visit is one member's dealings with one group.
type visit struct {
	*shelf
	who     Incarnation
	birth   *[8]byte // of the group that was met first; nil before
	parting time.Duration
}

func newVisit(s store.Store, group string, who Incarnation) *visit {
	return &visit{shelf: newShelf(s, group), who: who, parting: parting}
}

// look reads the gate, and finds out when it is not the one of before.
func (v *visit) look(ctx context.Context) (*gate, error) {
	g, err := v.shelf.look(ctx)
	if err != nil {
		return nil, err
	}
	if v.birth != nil && (g.phase == absent || g.birth != *v.birth) {
		return nil, ErrLost
	}
	if v.birth == nil && g.phase != absent {
		v.birth = &g.birth
	}
	return g, nil
}

// members reads the list of a complete group. It is nil where the group has ended
// meanwhile.
func (v *visit) members(ctx context.Context, g *gate) ([]Member, error) {
	value, err := v.get(ctx, v.listKey(g.gen, g.lister))
	if err != nil {
		return nil, err
	}
	if value == nil {
		same, err := v.still(ctx, g)
		if same {
			err = corrupt("a complete group without members")
		}
		return nil, err
	}
	return decodeList(value, g.world)
}

// hear comes to a group that has failed. It returns true where this one knew, and
// else tells why. It returns neither where the gate has changed.
func (v *visit) hear(ctx context.Context, g *gate, who string) (told bool, err error) {
	value, err := v.get(ctx, v.toldKey(g.gen, who))
	if err != nil || value != nil {
		return value != nil, err
	}
	if same, err := v.still(ctx, g); err != nil || !same {
		return false, err
	}
	return false, v.tell(ctx, g, who)
}

// still returns whether the gate is as it was, so that a key that was not found
// since has not been swept away.
func (v *visit) still(ctx context.Context, g *gate) (bool, error) {
	now, err := v.look(ctx)
	return err == nil && now.seq == g.seq, err
}

// tell returns why a group failed, and notes that this one knows.
func (v *visit) tell(ctx context.Context, g *gate, who string) error {
	if err := v.set(ctx, v.toldKey(g.gen, who), mark); err != nil {
		return err
	}
	return g.failure.err()
}

// mark is the value of keys that need none; an empty one would be no value.
var mark = []byte{1}

func toldRank(rank int) string { return strconv.Itoa(rank) }

// toldDynamic stands for all who wanted a dynamic group.
const toldDynamic = "dynamic"

// condemn makes an open group fail. It returns the reason, or nil where the gate
// has changed: it must be looked at again.
func (v *visit) condemn(ctx context.Context, g *gate, f failure, who string) error {
	f.gen = g.gen
	to := g.next()
	to.phase, to.failure = failed, &f
	won, err := v.change(ctx, g, to)
	if !won || err != nil {
		return err
	}
	if err := v.set(ctx, v.decidedKey(g.gen), mark); err != nil {
		return err
	}
	return v.tell(ctx, to, who)
}

// describe is the beginning of a sentence about ranks.
func describe(ranks []int, world int) string {
	const most = 16
	var list []string
	for _, r := range ranks[:min(len(ranks), most)] {
		list = append(list, strconv.Itoa(r))
	}
	if more := len(ranks) - most; more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %s of %d has", list[0], world)
	}
	return fmt.Sprintf("ranks %s of %d have", strings.Join(list, ", "), world)
}
