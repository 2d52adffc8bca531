package failpoint

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// A failpoint allocates nothing, and does nothing without Variable.
func TestHere(t *testing.T) {
	require.Zero(t, testing.AllocsPerRun(100, Here))
}
