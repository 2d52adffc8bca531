package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// BenchmarkFirstLarge opens 50 pipes over shared memory to a second process, one after the other,
// and reports the round trip of the first large message of each, either at once or after 100 round
// trips of 8 bytes and 20 ms without activity. The metric next is the round trip of the second
// large message, which follows immediately.
func BenchmarkFirstLarge(b *testing.B) {
	needSharedMemory(b)
	for _, idle := range []time.Duration{0, 20 * time.Millisecond} {
		for _, size := range []int{64 << 10, 256 << 10, 1 << 20, 2 << 20} {
			b.Run(fmt.Sprintf("idle=%v/%dKiB", idle, size>>10), func(b *testing.B) { firstLarge(b, size, idle) })
		}
	}
}

func firstLarge(b *testing.B, size int, idle time.Duration) {
	small, large := sharedSpec(pipe.DialectNative, 8), sharedSpec(pipe.DialectNative, size)
	small.RoundTrips, large.RoundTrips = 100, 1
	end, err := Go{Child: child(b)}.start(b.Context(), small, nil)
	require.NoError(b, err)
	var first, next []time.Duration
	for b.Loop() {
		for range 50 {
			require.NoError(b, withServerAt(b, small, end.url, func(c *client, _ *pipe.Plan) error {
				_, _, err := c.roundTrips(small.RoundTrips, 0)
				if err != nil {
					return err
				}
				c, err = newClient(c.pipe, large.withDefaults(), nil)
				if err != nil {
					return err
				}
				defer c.release()
				one, _, err := c.roundTrips(1, idle)
				if err != nil {
					return err
				}
				other, _, err := c.roundTrips(1, 0)
				first, next = append(first, one...), append(next, other...)
				return err
			}))
		}
	}
	require.NoError(b, end.stop())
	b.ReportMetric(0, "ns/op")
	for name, took := range map[string][]time.Duration{"first": first, "next": next} {
		p := percentiles(took)
		b.ReportMetric(p.P50, name+"-p50-us")
		b.ReportMetric(p.P90, name+"-p90-us")
	}
}
