package race

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestPick(t *testing.T) {
	require.Equal(t, 64, pick(false, 64, 16))
	require.Equal(t, 16, pick(true, 64, 16))
	require.Equal(t, pick(Enabled, "usual", "less"), Pick("usual", "less"))
}

func TestTakes(t *testing.T) {
	taken := func(watched bool, n int) (points []int) {
		for i := range n {
			if takes(watched, i, n, 3) {
				points = append(points, i)
			}
		}
		return points
	}
	require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7}, taken(false, 8))
	require.Equal(t, []int{0, 3, 6, 7}, taken(true, 8))
	require.Equal(t, []int{0, 3, 6}, taken(true, 7))
	require.Equal(t, []int{0}, taken(true, 1))
	require.Equal(t, !Enabled, Takes(1, 3, 3))
}
