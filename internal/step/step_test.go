package step

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// A point costs no allocation, and nothing happens there unasked.
func TestHere(t *testing.T) {
	require.Zero(t, testing.AllocsPerRun(100, Here))
}
