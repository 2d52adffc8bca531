package invariants

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestCheckHolds(t *testing.T) {
	require.NotPanics(t, func() { Check(true, "never seen") })
}

// Check of a false condition panics with the formatted message, and does nothing in a build without
// the tag "invariants".
func TestCheckBroken(t *testing.T) {
	broken := func() { Check(false, "block %d released twice", 7) }
	if !Enabled {
		require.NotPanics(t, broken)
		return
	}
	require.PanicsWithValue(t, "invariant violated: block 7 released twice", broken)
}

func TestScribble(t *testing.T) {
	p := []byte{1, 2, 3}
	Scribble(p[:2])
	if !Enabled {
		require.Equal(t, []byte{1, 2, 3}, p)
		return
	}
	require.Equal(t, []byte{0xcc, 0xcc, 3}, p)
}

// Check allocates nothing if the condition holds, since it is called on hot paths.
func TestCheckAllocatesNothing(t *testing.T) {
	p := make([]byte, 64)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		Check(len(p) == 64, "wrong length")
		Scribble(p)
	}))
}
