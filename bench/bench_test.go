package bench

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkRoundTrip measures messages to a second process and their echoes, on each path and for
// each size. One operation is one round trip. Allocations are those of this process.
func BenchmarkRoundTrip(b *testing.B) {
	for _, l := range loads() {
		forEachMessage(b, l, func(b *testing.B, s Spec) {
			withServer(b, s, func(c *client) { roundTrips(b, c) })
		})
	}
}

func roundTrips(b *testing.B, c *client) {
	begin := func() { require.NoError(b, c.begin(kindEcho, len(c.sent))) }
	end := func() {
		_, err := c.endTrips(len(c.sent))
		require.NoError(b, err)
	}
	begin()
	b.SetBytes(2 * int64(c.spec.Size))
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if i == len(c.sent) {
			b.StopTimer()
			end()
			begin()
			i = 0
			b.StartTimer()
		}
		if err := c.trip(i); err != nil {
			b.Fatal(err)
		}
		i++
	}
	for ; i < len(c.sent); i++ {
		require.NoError(b, c.trip(i))
	}
	end()
}

// BenchmarkOneWay measures batches of messages to a second process, 8 messages in flight, on each
// path and for each size. One operation is one batch. The figures of one message are reported as
// metrics.
func BenchmarkOneWay(b *testing.B) {
	for _, l := range loads() {
		forEachMessage(b, l, func(b *testing.B, s Spec) {
			withServer(b, s, func(c *client) { oneWay(b, c) })
		})
	}
}

func oneWay(b *testing.B, c *client) {
	var took, cpu time.Duration
	n := 0
	for b.Loop() {
		t, used, err := c.sendBatch(len(c.sent))
		require.NoError(b, err)
		took, cpu, n = took+t, cpu+used, n+len(c.sent)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(n)/took.Seconds(), "messages/s")
	if c.spec.Size >= bigSize {
		gb := float64(n) * float64(c.spec.Size) / 1e9
		b.ReportMetric(gb/took.Seconds(), "GB/s")
		b.ReportMetric(cpu.Seconds()/gb, "cpu-s/GB")
	}
}
