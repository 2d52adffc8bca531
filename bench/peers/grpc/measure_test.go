package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPercentiles(t *testing.T) {
	r := newResult(job{kindBytes, 1000, 4}, durations(40, 10, 30, 20), 2e9, 8e3)
	require.Equal(t, result{What: "bytes@1000", N: 4, P50: 20, P90: 40, P99: 40, PerS: 2, CPU: 2, BytesPer: 2000}, r)
}

func durations(us ...time.Duration) []time.Duration {
	for i := range us {
		us[i] *= time.Microsecond
	}
	return us
}
