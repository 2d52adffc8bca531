package drops

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// made are the calls of TestScenario. Without the first one it sees wrong bytes, without the second one it
// fails otherwise, and without the others it passes.
var made = []string{"main wait s1 1", "main wait s1 2", "main record s1 1", "main record s2 1"}

// TestScenario stands for a test on the simulated driver: it appends its calls to a trace.
func TestScenario(t *testing.T) {
	if !Running() {
		t.Skip("it is a scenario of the other tests")
	}
	t.Run("part", func(t *testing.T) {
		require.NoError(t, os.WriteFile(os.Getenv("CUSIM_TRACE"), []byte(strings.Join(made, "\ta.f\n")+"\n"), 0o600))
		switch os.Getenv("CUSIM_DROP") {
		case made[0]:
			t.Fatal(WrongBytes)
		case made[1]:
			t.Fatal("another failure")
		}
	})
}

func TestProve(t *testing.T) {
	s := Suite{Redundant: []Reason{
		{Text: "of another scenario", Scenario: "^Another"},
		{Text: "of another call", Call: "s3"},
		{Text: "of another site", Site: "g"},
		{Text: "a reason", Scenario: "/part$", Call: " s1 ", Site: "^a.f$"},
	}}
	used := make([]bool, len(s.Redundant))
	require.Equal(t, Count{Scenarios: 1, Calls: 4, Tried: 4, Caught: 1, Otherwise: 1, Redundant: 2, Unexplained: 1}, s.prove(t, "TestScenario/part", 9, used))
	require.Equal(t, []string{"of another scenario", "of another call", "of another site"}, s.unused(used))

	var c Count
	require.Empty(t, c.drop(t, "TestScenario/part", []string{"main wait s9 1"}, 0, nil))
	require.Equal(t, Count{NotMade: 1}, c)
}

func TestSpread(t *testing.T) {
	calls := strings.Fields("a b c d e f g")
	require.Equal(t, calls, spread(calls, 7))
	require.Equal(t, []string{"a", "c", "e"}, spread(calls, 3))
}

func TestCountProves(t *testing.T) {
	for c, want := range map[Count]bool{
		{}:                            false,
		{Tried: 4, Redundant: 1}:      true,
		{Tried: 4, Redundant: 3}:      false,
		{Tried: 8, Redundant: 4}:      true,
		{Tried: 8, Redundant: 5}:      false,
		{Tried: few, Redundant: 2}:    true,
		{Tried: few, Redundant: 3}:    false,
		{Tried: 1000, Redundant: 100}: true,
		{Tried: 1000, Redundant: 101}: false,
	} {
		require.Equal(t, want, c.proves(), c)
	}
}
