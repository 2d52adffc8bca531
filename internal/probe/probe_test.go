package probe_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/probe"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestNotSupportedSaysWhatAndWhy(t *testing.T) {
	err := probe.NotSupported("cma", "ptrace scope is %d", 3)
	require.EqualError(t, err, "cma is not supported: ptrace scope is 3")
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.NotErrorIs(t, err, errors.New("another"))
	var typed *probe.NotSupportedError
	require.ErrorAs(t, fmt.Errorf("opening: %w", err), &typed)
	require.Equal(t, "cma", typed.Capability)
	require.Equal(t, "ptrace scope is 3", typed.Reason)
}

func TestOnce(t *testing.T) {
	own := probe.NotSupported("memfd", "old kernel")
	for _, tc := range []struct {
		name   string
		result error
		want   string // "" for supported
	}{
		{"supported", nil, ""},
		{"typed", own, "memfd is not supported: old kernel"},
		{"typed and wrapped", fmt.Errorf("while trying: %w", own), "while trying: memfd is not supported: old kernel"},
		{"untyped", errors.New("no such file"), "shm is not supported: no such file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			runs := 0
			viable := probe.Once("shm", func() error {
				runs++
				return tc.result
			})
			require.Zero(t, runs, "nothing is probed before it is asked for")
			for range 3 {
				err := viable()
				if tc.want == "" {
					require.NoError(t, err)
					continue
				}
				require.EqualError(t, err, tc.want)
				require.ErrorIs(t, err, errors.ErrUnsupported)
			}
			require.Equal(t, 1, runs)
		})
	}
}

func TestOnceFromManyGoroutines(t *testing.T) {
	var runs atomic.Int32
	viable := probe.Once("x", func() error {
		runs.Add(1)
		return errors.New("broken")
	})
	var all sync.WaitGroup
	errs := make([]error, 16)
	for i := range errs {
		all.Go(func() { errs[i] = viable() })
	}
	all.Wait()
	require.EqualValues(t, 1, runs.Load())
	for _, err := range errs {
		require.Same(t, errs[0], err)
	}
}
