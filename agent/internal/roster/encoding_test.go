package roster

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func full(rank int) Member {
	m := worker("worker"+string(rune('0'+rank)), rank)
	m.Static, m.MinVersion, m.MaxVersion = true, 1, 1<<32-1
	return m
}

func TestEntryRoundTrip(t *testing.T) {
	bare := Member{Name: "a", Incarnation: Incarnation{1}, Static: true}
	require.Equal(t, smallest, len(encodeEntry(bare))-2)
	for _, m := range []Member{bare, full(3)} {
		got, err := decodeEntry(encodeEntry(m), m.Rank)
		require.NoError(t, err)
		require.Equal(t, m, got)
	}
}

func TestListRoundTrip(t *testing.T) {
	list := []Member{full(0), full(1), full(2)}
	got, err := decodeList(encodeList(list), 3)
	require.NoError(t, err)
	require.Equal(t, list, got)

	_, err = decodeList(encodeList(list), 2)
	require.ErrorIs(t, err, ErrCorrupt)
	_, err = decodeList(encodeList([]Member{full(0), full(2)}), 2)
	require.ErrorIs(t, err, ErrCorrupt)
	_, err = decodeList(encodeList([]Member{full(1), full(0)}), 2)
	require.ErrorIs(t, err, ErrCorrupt)
	twin := full(1)
	twin.Name = full(0).Name
	_, err = decodeList(encodeList([]Member{full(0), twin}), 2)
	require.ErrorIs(t, err, ErrCorrupt)
	_, err = decodeList(encodeList(nil), 1)
	require.ErrorIs(t, err, ErrCorrupt)
}

// gates are one of each kind.
func gates() []*gate {
	first := (&gate{}).opened(open, 4)
	done := first.next()
	done.phase, done.lister = complete, Incarnation{7}
	bad := first.next()
	bad.phase, bad.failure = failed, &failure{gen: 1, kind: sameRank, name: "a", other: "b", a: 3, b: 2}
	moving := bad.opened(dynamic, 0)
	moving.members = []Member{{Name: "a", Incarnation: Incarnation{1}}, {Name: "b", Rank: 9, Incarnation: Incarnation{2}}}
	over := done.next()
	over.phase = ended
	return []*gate{first, done, bad, moving, over}
}

func TestGateRoundTrip(t *testing.T) {
	for _, g := range gates() {
		g.raw = g.encode()
		got, err := decodeGate(g.raw)
		require.NoError(t, err)
		if g.phase == ended {
			require.NotZero(t, got.lister, "who sweeps wants to know")
		}
		require.Equal(t, g, got)
	}
}

func TestGatesNeverComeTwice(t *testing.T) {
	a, b := (&gate{}).opened(open, 4), (&gate{}).opened(open, 4)
	require.NotEqual(t, a.encode(), b.encode(), "two births")
	require.NotEqual(t, a.encode(), a.next().encode())
}

// What is on the store may be anything.
func TestBadValues(t *testing.T) {
	good := gates()[2].encode()
	for cut := range good {
		_, err := decodeGate(good[:cut])
		require.ErrorIs(t, err, ErrCorrupt)
	}
	_, err := decodeGate(append(good, 0))
	require.ErrorIs(t, err, ErrCorrupt)
	_, err = decodeGate(append([]byte{2}, good[1:]...))
	require.ErrorIs(t, err, ErrVersion)
	require.NotErrorIs(t, err, ErrCorrupt)

	for what, change := range map[string]func(*gate){
		"no phase":           func(g *gate) { g.phase = absent },
		"unknown phase":      func(g *gate) { g.phase = lastPhase },
		"failed for nothing": func(g *gate) { g.failure = nil },
		"failed before":      func(g *gate) { g.gen++ },
		"unknown failure":    func(g *gate) { g.failure.kind = lastConflict },
		"nobody failed":      func(g *gate) { g.failure.name = "" },
		"not a name":         func(g *gate) { g.failure.other = "\x1b[2J" },
		"no world":           func(g *gate) { g.world = 0 },
		"large world":        func(g *gate) { g.world = maxWorld + 1 },
		"large number":       func(g *gate) { g.seq = 1 << 63 },
	} {
		g := gates()[2]
		change(g)
		_, err := decodeGate(g.encode())
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

// A list that claims many members takes no memory for them.
func TestManyMembersInFewBytes(t *testing.T) {
	value := appendNumber(begin(kindList), maxWorld)
	require.Less(t, testing.AllocsPerRun(10, func() { _, _ = decodeList(value, maxWorld) }), 20.0)
	_, err := decodeList(value, maxWorld)
	require.ErrorIs(t, err, ErrCorrupt)
}

// FuzzDecode decodes arbitrary bytes as everything that may be on the store. What
// is accepted means the same when it is written again.
func FuzzDecode(f *testing.F) {
	for _, g := range gates() {
		f.Add(g.encode())
	}
	f.Add(encodeEntry(full(0)))
	f.Add(encodeList([]Member{full(0), full(1)}))
	f.Add(claim{3, Incarnation{1}}.encode())
	f.Fuzz(func(t *testing.T, value []byte) {
		typed := func(err error) bool {
			require.True(t, err == nil || isAny(err, ErrCorrupt, ErrVersion), "%v", err)
			return err == nil
		}
		g, err := decodeGate(value)
		if typed(err) {
			again, err := decodeGate(g.encode())
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
			require.Nil(t, unnamed(judge(list)), "names are checked when they are read")
		}
		_, err = decodeClaim(value)
		typed(err)
	})
}

// unnamed leaves a failure over versions out, which a list may hold.
func unnamed(f *failure) *failure {
	if f != nil && f.kind == noVersion {
		return nil
	}
	return f
}
