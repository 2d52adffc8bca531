package roster

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func staticMember(rank int) Member {
	m := worker("worker"+string(rune('0'+rank)), rank)
	m.Static, m.MinVersion, m.MaxVersion = true, 1, 1<<32-1
	return m
}

func TestEntryRoundTrip(t *testing.T) {
	bare := Member{Name: "a", Incarnation: Incarnation{1}, Static: true}
	require.Equal(t, minMemberBytes, len(encodeEntry(bare))-2)
	for _, m := range []Member{bare, staticMember(3)} {
		got, err := decodeEntry(encodeEntry(m), m.Rank)
		require.NoError(t, err)
		require.Equal(t, m, got)
	}
}

func TestListRoundTrip(t *testing.T) {
	list := []Member{staticMember(0), staticMember(1), staticMember(2)}
	got, err := decodeList(encodeList(list), 3)
	require.NoError(t, err)
	require.Equal(t, list, got)

	_, err = decodeList(encodeList(list), 2)
	require.ErrorIs(t, err, ErrCorrupt)
	_, err = decodeList(encodeList([]Member{staticMember(0), staticMember(2)}), 2)
	require.ErrorIs(t, err, ErrCorrupt)
	_, err = decodeList(encodeList([]Member{staticMember(1), staticMember(0)}), 2)
	require.ErrorIs(t, err, ErrCorrupt)
	twin := staticMember(1)
	twin.Name = staticMember(0).Name
	_, err = decodeList(encodeList([]Member{staticMember(0), twin}), 2)
	require.ErrorIs(t, err, ErrCorrupt)
	_, err = decodeList(encodeList(nil), 1)
	require.ErrorIs(t, err, ErrCorrupt)
}

// stateSamples returns new valid group states, one for each phase but absent.
func stateSamples() []*groupState {
	first := (&groupState{}).nextGeneration(open, 4)
	done := first.next()
	done.phase, done.listWriter = complete, Incarnation{7}
	bad := first.next()
	bad.phase, bad.failure = failed, &failure{gen: 1, kind: sameRank, name: "a", other: "b", a: 3, b: 2}
	moving := bad.nextGeneration(dynamic, 0)
	moving.members = []Member{{Name: "a", Incarnation: Incarnation{1}}, {Name: "b", Rank: 9, Incarnation: Incarnation{2}}}
	over := done.next()
	over.phase = ended
	return []*groupState{first, done, bad, moving, over}
}

func TestStateRoundTrip(t *testing.T) {
	for _, g := range stateSamples() {
		g.raw = g.encode()
		got, err := decodeState(g.raw)
		require.NoError(t, err)
		if g.phase == ended {
			require.NotZero(t, got.listWriter, "needed for sweeping")
		}
		require.Equal(t, g, got)
	}
}

func TestStatesAreUnique(t *testing.T) {
	a, b := (&groupState{}).nextGeneration(open, 4), (&groupState{}).nextGeneration(open, 4)
	require.NotEqual(t, a.encode(), b.encode(), "two store IDs")
	require.NotEqual(t, a.encode(), a.next().encode())
}

// TestBadValues tests that decoding invalid values of a group's state, a member or a claim fails
// with ErrCorrupt, and of another format version with ErrVersion.
func TestBadValues(t *testing.T) {
	good := stateSamples()[2].encode()
	for cut := range good {
		_, err := decodeState(good[:cut])
		require.ErrorIs(t, err, ErrCorrupt)
	}
	_, err := decodeState(append(good, 0))
	require.ErrorIs(t, err, ErrCorrupt)
	_, err = decodeState(append([]byte{2}, good[1:]...))
	require.ErrorIs(t, err, ErrVersion)
	require.NotErrorIs(t, err, ErrCorrupt)

	for what, change := range map[string]func(*groupState){
		"no phase":           func(g *groupState) { g.phase = absent },
		"unknown phase":      func(g *groupState) { g.phase = lastPhase },
		"failed for nothing": func(g *groupState) { g.failure = nil },
		"failed before":      func(g *groupState) { g.gen++ },
		"unknown failure":    func(g *groupState) { g.failure.kind = lastConflict },
		"nobody failed":      func(g *groupState) { g.failure.name = "" },
		"not a name":         func(g *groupState) { g.failure.other = "\x1b[2J" },
		"no world":           func(g *groupState) { g.world = 0 },
		"large world":        func(g *groupState) { g.world = maxWorld + 1 },
		"large number":       func(g *groupState) { g.seq = 1 << 63 },
	} {
		g := stateSamples()[2]
		change(g)
		_, err := decodeState(g.encode())
		require.ErrorIs(t, err, ErrCorrupt, what)
	}
	for what, m := range map[string]Member{
		"a dynamic member": {Name: "a", Incarnation: Incarnation{1}},
		"no incarnation":   {Name: "a", Static: true},
		"no name":          {Incarnation: Incarnation{1}, Static: true},
		"an upset range":   {Name: "a", Incarnation: Incarnation{1}, Static: true, MinVersion: 1},
		"another rank":     {Name: "a", Incarnation: Incarnation{1}, Static: true, Rank: 1},
		"a long address":   {Name: "a", Incarnation: Incarnation{1}, Static: true, URLs: []string{strings.Repeat("u", maxURL+1)}},
		"large extra":      {Name: "a", Incarnation: Incarnation{1}, Static: true, Extra: make([]byte, maxExtra+1)},
	} {
		_, err := decodeEntry(encodeEntry(m), 0)
		require.ErrorIs(t, err, ErrCorrupt, what)
	}
	_, err = decodeClaim(claim{3, Incarnation{1}}.encode()[:5])
	require.ErrorIs(t, err, ErrCorrupt)
}

// TestForgedMemberCount tests that decodeList allocates little for a value that claims many members
// in few bytes, and fails with ErrCorrupt.
func TestForgedMemberCount(t *testing.T) {
	value := binary.AppendUvarint(begin(kindList), maxWorld)
	require.Less(t, testing.AllocsPerRun(10, func() { _, _ = decodeList(value, maxWorld) }), 20.0)
	_, err := decodeList(value, maxWorld)
	require.ErrorIs(t, err, ErrCorrupt)
}

// FuzzDecode decodes arbitrary bytes as each kind of value on the store. It tests that an error
// matches ErrCorrupt or ErrVersion, and that a decoded state or member is the same after it was
// encoded and decoded again.
func FuzzDecode(f *testing.F) {
	for _, g := range stateSamples() {
		f.Add(g.encode())
	}
	f.Add(encodeEntry(staticMember(0)))
	f.Add(encodeList([]Member{staticMember(0), staticMember(1)}))
	f.Add(claim{3, Incarnation{1}}.encode())
	f.Fuzz(func(t *testing.T, value []byte) {
		typed := func(err error) bool {
			require.True(t, err == nil || isAny(err, ErrCorrupt, ErrVersion), "%v", err)
			return err == nil
		}
		g, err := decodeState(value)
		if typed(err) {
			again, err := decodeState(g.encode())
			require.NoError(t, err)
			again.raw = g.raw
			require.Equal(t, g, again)
		}
		m, err := decodeEntry(value, 0)
		if typed(err) {
			require.NoError(t, m.check())
			again, err := decodeEntry(encodeEntry(m), 0)
			require.NoError(t, err)
			require.Equal(t, m, again)
		}
		list, err := decodeList(value, 2)
		if typed(err) {
			require.Len(t, list, 2)
			require.Nil(t, ignoreVersions(findConflict(list)), "names are checked when they are read")
		}
		_, err = decodeClaim(value)
		typed(err)
	})
}

// ignoreVersions returns nil if f is nil or a version conflict, which a valid member list may
// contain. Otherwise it returns f.
func ignoreVersions(f *failure) *failure {
	if f != nil && f.kind == noCommonVersion {
		return nil
	}
	return f
}
