package gorgonia_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/cu"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/gorgonia"
)

// The defects of cu that make this package call C are there. With a version of cu without one, its
// workaround can go.
func TestDefectsOfCU(t *testing.T) {
	d := open(t)
	c, err := d.PrimaryContextRetain(0)
	require.NoError(t, err)
	defer func() { require.NoError(t, d.PrimaryContextRelease(0)) }()
	require.NoError(t, d.Push(c))
	defer d.Pop()

	p, err := d.Alloc(100)
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Free(p)) }()
	_, err = gorgonia.DevicePtr(p).PtrAttribute(cu.MemoryTypeAttr)
	require.Equal(t, cu.InvalidValue, err)

	const runs = 10
	pop := func() {
		if cu.PushCurrentCtx(gorgonia.CUContext(c)) == nil {
			_, _ = cu.PopCurrentCtx()
		}
	}
	require.Positive(t, testing.AllocsPerRun(runs, pop))
	query := func() { _ = cu.Event{}.Query() } // an error, as for an event that is not done
	require.Positive(t, testing.AllocsPerRun(runs, query))
}
