package drops

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSiteHasAnEnd(t *testing.T) {
	var pcs [50]uintptr
	outer := func() []uintptr { return pcs[:runtime.Callers(1, pcs[:])] }
	stack := outer()
	require.Equal(t, "drops.TestSiteHasAnEnd.func1 < drops.TestSiteHasAnEnd", join(stack, 2))
	require.Equal(t, "drops.TestSiteHasAnEnd.func1 < ...", join(stack, 1))
}
