package roster

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
)

// phase is the phase of a group's life.
type phase byte

const (
	absent   phase = iota // no member has ever joined; never on the store
	open                  // static, waiting for members
	complete              // static, all members have joined
	failed                // static, the members are in conflict
	ended                 // static, all members have left
	dynamic
	lastPhase
)

// groupState is the state of a group: its phase and generation, and the members of a dynamic
// group. It is stored under one key. A member changes it only by replacing the state that it has
// read, which fails if another member has changed it since.
type groupState struct {
	raw     []byte  // the encoded value on the store; nil if the key does not exist
	storeID [8]byte // random, set by the first change; a different one means that the store lost its content
	gen     uint64  // generation
	seq     uint64  // incremented by every change
	phase   phase

	world      int         // of a static group
	listWriter Incarnation // the member that wrote the list of a complete group
	failure    *failure    // the latest failure, of this or an earlier generation
	members    []Member    // of a dynamic group, ordered by rank
}

// next returns a copy of g with the next sequence number, and with a new random store ID if the
// phase of g is absent. The copy shares the members and the failure of g: the caller may assign to
// fields of the copy, but not change what those refer to. The copy is meant for replaceState.
func (g *groupState) next() *groupState {
	n := *g
	n.seq++
	if g.phase == absent {
		_, _ = rand.Read(n.storeID[:]) // never fails
	}
	return &n
}

// nextGeneration returns the first state of the group's next generation, that is of the next group
// under the same name: in phase p, for world members if the group is static, and with an empty
// member list. It does not store that state.
func (g *groupState) nextGeneration(p phase, world int) *groupState {
	n := g.next()
	n.gen++
	n.phase, n.world, n.members, n.listWriter = p, world, nil, Incarnation{}
	return n
}

// available reports whether no group exists under the name: none ever has, the static one has
// ended, or the dynamic one has no members. The next member that joins then begins a new
// generation.
func (g *groupState) available() bool {
	return g.phase == absent || g.phase == ended || g.phase == dynamic && len(g.members) == 0
}

// is reports whether g is in phase p of the generation with the number gen.
func (g *groupState) is(p phase, gen uint64) bool { return g.phase == p && g.gen == gen }

func (g *groupState) encode() []byte {
	dst := append(begin(kindState), byte(g.phase))
	dst = append(dst, g.storeID[:]...)
	dst = binary.AppendUvarint(dst, g.gen)
	dst = binary.AppendUvarint(dst, g.seq)
	if f := g.failure; f == nil {
		dst = append(dst, 0)
	} else {
		dst = append(dst, 1, byte(f.kind))
		dst = binary.AppendUvarint(dst, f.gen)
		dst = appendText(dst, f.name)
		dst = appendText(dst, f.other)
		dst = binary.AppendUvarint(dst, uint64(f.a))
		dst = binary.AppendUvarint(dst, uint64(f.b))
	}
	if g.phase == dynamic {
		return appendMembers(dst, g.members)
	}
	dst = binary.AppendUvarint(dst, uint64(g.world))
	return append(dst, g.listWriter[:]...)
}

func decodeState(value []byte) (*groupState, error) {
	d := decode(value, kindState)
	g := &groupState{raw: value, phase: phase(d.byte())}
	if g.phase == absent || g.phase >= lastPhase {
		d.fail("a group in phase %d", g.phase)
	}
	copy(g.storeID[:], d.take(len(g.storeID)))
	g.gen, g.seq = d.number(maxNumber), d.number(maxNumber)
	if d.byte() != 0 {
		f := &failure{kind: conflict(d.byte()), gen: d.number(maxNumber)}
		f.name, f.other = d.text(maxName), d.text(maxName)
		f.a, f.b = int(d.number(maxWorld)), int(d.number(maxWorld))
		if f.kind == 0 || f.kind >= lastConflict {
			d.fail("a failure of kind %d", f.kind)
		}
		if checkName(f.name) != nil || f.other != "" && checkName(f.other) != nil {
			d.fail("a failure without a valid name")
		}
		g.failure = f
	}
	if g.phase == dynamic {
		g.members = d.members(false)
	} else {
		g.world, g.listWriter = int(d.number(maxWorld)), d.incarnation()
		if g.world == 0 {
			d.fail("a group without members")
		}
	}
	if g.phase == failed && (g.failure == nil || g.failure.gen != g.gen) {
		d.fail("a group that failed for no reason")
	}
	return g, d.end()
}

// cleanupTimeout bounds the time after the end of its context in which a join takes back its
// claims.
const cleanupTimeout = time.Second

// groupAccess reads and changes the state of one group on behalf of one member.
type groupAccess struct {
	*keySpace
	id             Incarnation
	storeID        *[8]byte // of the first state that was read; nil before
	cleanupTimeout time.Duration
	onWait         func(ctx context.Context) // called before each wait for other members
}

func newGroupAccess(s store.Store, group string, id Incarnation) *groupAccess {
	return &groupAccess{keySpace: newKeySpace(s, group), id: id, cleanupTimeout: cleanupTimeout, onWait: func(context.Context) {}}
}

// readState reads and decodes the state of the group. If the store has none it returns a state in
// phase absent. The first state that is on the store sets v.storeID. The error is ErrLost if the
// store has lost its content since then: the state is missing or has another store ID. Otherwise
// the error matches ErrCorrupt or ErrVersion, or is that of the store or ctx. After an error the
// result is nil.
func (v *groupAccess) readState(ctx context.Context) (*groupState, error) {
	value, err := v.get(ctx, v.stateKey())
	g := &groupState{}
	if err == nil && value != nil {
		g, err = decodeState(value)
	}
	if err != nil {
		return nil, err
	}
	if v.storeID != nil && (g.phase == absent || g.storeID != *v.storeID) {
		return nil, ErrLost
	}
	if v.storeID == nil && g.phase != absent {
		v.storeID = &g.storeID
	}
	return g, nil
}

// members reads the member list of the complete group g, ordered by rank, from the store. It
// returns nil and no error if the list is missing because the group's state has changed since g was
// read. The error matches ErrCorrupt if the list is invalid, or missing though the state is still
// g. Otherwise it matches ErrVersion, or is that of reading the store.
func (v *groupAccess) members(ctx context.Context, g *groupState) ([]Member, error) {
	value, err := v.get(ctx, v.listKey(g.gen, g.listWriter))
	if err != nil {
		return nil, err
	}
	if value == nil {
		same, err := v.unchanged(ctx, g)
		if same {
			err = corrupt("a complete group without members")
		}
		return nil, err
	}
	return decodeList(value, g.world)
}

// learnFailure sets the key on the store that ack names, and returns the reason for which the group
// has failed as the error. g is the failed state. If the key exists already, because the reason was
// returned before, learnFailure returns true and nil instead. It returns false and nil if the state
// has changed since g was read. The error may also be that of the store or ctx.
func (v *groupAccess) learnFailure(ctx context.Context, g *groupState, ack string) (acked bool, err error) {
	value, err := v.get(ctx, v.ackKey(g.gen, ack))
	if err != nil || value != nil {
		return value != nil, err
	}
	if same, err := v.unchanged(ctx, g); err != nil || !same {
		return false, err
	}
	return false, v.acknowledgeFailure(ctx, g, ack)
}

// unchanged reports whether the state on the store is still g, by its sequence number. If it is, a
// key of the generation of g that was not found has not been deleted by sweep either. If the state
// cannot be read, unchanged returns false and the error.
func (v *groupAccess) unchanged(ctx context.Context, g *groupState) (bool, error) {
	now, err := v.readState(ctx)
	return err == nil && now.seq == g.seq, err
}

// acknowledgeFailure sets the key on the store, named by ack, that shows that this member knows of
// the failure of g. It returns that failure as the error, or the error of the store. It never
// returns nil.
func (v *groupAccess) acknowledgeFailure(ctx context.Context, g *groupState, ack string) error {
	if err := v.set(ctx, v.ackKey(g.gen, ack), flagValue); err != nil {
		return err
	}
	return g.failure.err()
}

// flagValue is the value of keys that only exist or not. It is not empty, since get reports
// an empty value as missing.
var flagValue = []byte{1}

func rankAck(rank int) string { return strconv.Itoa(rank) }

// dynamicAck stands for all members that wanted a dynamic group.
const dynamicAck = "dynamic"

// failGroup makes the open generation of g fail with f, notifies members that wait, and
// acknowledges the failure with the key that ack names. It returns the failure as the error, or an
// error of the store. It returns nil if another member has changed the state first: the caller then
// must read the state again.
func (v *groupAccess) failGroup(ctx context.Context, g *groupState, f failure, ack string) error {
	f.gen = g.gen
	to := g.next()
	to.phase, to.failure = failed, &f
	won, err := v.replaceState(ctx, g, to)
	if !won || err != nil {
		return err
	}
	if err := v.set(ctx, v.decidedKey(g.gen), flagValue); err != nil {
		return err
	}
	return v.acknowledgeFailure(ctx, to, ack)
}

// describeRanks returns the beginning of a sentence about ranks of a group of world members: "rank
// 3 of 4 has", "ranks 2, 3 of 4 have". It names at most 16 ranks, and then the number of the
// others. ranks must not be empty.
func describeRanks(ranks []int, world int) string {
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
