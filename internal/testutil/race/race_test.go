package race

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestPick(t *testing.T) {
	require.Equal(t, 64, pick(false, 64, 16))
	require.Equal(t, 16, pick(true, 64, 16))
	require.Equal(t, pick(Enabled, "normal", "less"), Pick("normal", "less"))
}

func TestIncludes(t *testing.T) {
	included := func(enabled bool, n int) (points []int) {
		for i := range n {
			if includes(enabled, i, n, 3) {
				points = append(points, i)
			}
		}
		return points
	}
	require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7}, included(false, 8))
	require.Equal(t, []int{0, 3, 6, 7}, included(true, 8))
	require.Equal(t, []int{0, 3, 6}, included(true, 7))
	require.Equal(t, []int{0}, included(true, 1))
	require.Equal(t, !Enabled, Includes(1, 3, 3))
}
