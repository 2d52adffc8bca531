package bench

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

const busyPairs = 4

// BenchmarkBusyPairs measures four pairs of processes that make round trips concurrently, for two
// seconds with spinning and for two without; one operation is five of both, alternating. The pairs
// of a run are sorted, the fastest first, and compared rank by rank. A ratio is the median over the
// runs, with spinning divided by without; the worst rank is reported.
func BenchmarkBusyPairs(b *testing.B) {
	spin := uvBasic(pipe.DialectNative)
	spin.Size, spin.Named = 8, true
	sleep := spin
	sleep.NoSpin = true
	var spins, sleeps [][]BusyPair
	for b.Loop() {
		for i := range versusPairs {
			if i%2 == 0 {
				spins = append(spins, busy(b, spin))
				sleeps = append(sleeps, busy(b, sleep))
			} else {
				sleeps = append(sleeps, busy(b, sleep))
				spins = append(spins, busy(b, spin))
			}
		}
	}
	b.ReportMetric(0, "ns/op")
	var p50s, rates []float64
	for rank := range busyPairs {
		b.ReportMetric(medianAt(spins, rank, medianTrip), fmt.Sprintf("spin-pair%d-p50-us", rank+1))
		b.ReportMetric(medianAt(sleeps, rank, medianTrip), fmt.Sprintf("sleep-pair%d-p50-us", rank+1))
		b.ReportMetric(medianAt(spins, rank, tripRate), fmt.Sprintf("spin-pair%d-trips/s", rank+1))
		b.ReportMetric(medianAt(sleeps, rank, tripRate), fmt.Sprintf("sleep-pair%d-trips/s", rank+1))
		p50s = append(p50s, ratioAt(spins, sleeps, rank, medianTrip))
		rates = append(rates, ratioAt(spins, sleeps, rank, tripRate))
	}
	b.ReportMetric(slices.Max(p50s), "worst-ratio-p50")
	b.ReportMetric(slices.Min(rates), "worst-ratio-trips/s")
}

// busy has several pairs of processes make round trips on the path of s for two seconds, and
// returns the results of the pairs, the fastest first.
func busy(b *testing.B, s Spec) []BusyPair {
	got, err := Go{Child: child(b)}.Busy(b.Context(), s, busyPairs, 2*time.Second)
	require.NoError(b, err)
	slices.SortFunc(got, func(x, y BusyPair) int { return cmp.Compare(x.RTT.P50, y.RTT.P50) })
	return got
}

func medianTrip(p BusyPair) float64 { return p.RTT.P50 }

func tripRate(p BusyPair) float64 { return p.TripsPerSecond }

// medianAt returns the median over runs of f of the pair with the index rank in each run.
func medianAt(runs [][]BusyPair, rank int, f func(BusyPair) float64) float64 {
	var all []float64
	for _, run := range runs {
		all = append(all, f(run[rank]))
	}
	return median(all)
}

// ratioAt returns the median over all runs i of f(a[i][rank]) divided by f(b[i][rank]). a and b
// must have as many runs.
func ratioAt(a, b [][]BusyPair, rank int, f func(BusyPair) float64) float64 {
	var all []float64
	for i := range a {
		all = append(all, f(a[i][rank])/f(b[i][rank]))
	}
	return median(all)
}

func TestBusy(t *testing.T) {
	pairs, err := Go{Child: child(t)}.Busy(t.Context(), small(8, true), 2, 10*time.Millisecond)
	require.NoError(t, err)
	require.Len(t, pairs, 2)
	for _, p := range pairs {
		require.Positive(t, p.RTT.P50)
		require.Positive(t, p.TripsPerSecond)
	}
}

func TestBusyPairCountsSlowTrips(t *testing.T) {
	p := newBusyPair([]time.Duration{time.Millisecond, time.Millisecond, 8 * time.Millisecond})
	require.Equal(t, 1000.0, p.RTT.P50)
	require.InDelta(t, 300, p.TripsPerSecond, 1e-9)
}
