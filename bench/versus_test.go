package bench

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// versusPairs is the minimum number of pairs of runs for a ratio.
const versusPairs = 5

// BenchmarkVersusLibtensorpipe measures the native dialect and the C++ library alternately on the
// same path: one operation is five pairs of measurements. Ratios are medians over the pairs of this
// library's figure divided by the other's. One-sided copies of large tensors are also compared with
// the other library's rings, its best path for them. Tensors of 256 MiB, which take minutes, are
// left to tpipe bench.
func BenchmarkVersusLibtensorpipe(b *testing.B) {
	err := Libtensorpipe{}.Build()
	if errors.Is(err, errors.ErrUnsupported) {
		b.Skip(err)
	}
	require.NoError(b, err)
	besideRings := direct()
	besideRings.PeerChannel = "basic"
	for _, l := range []load{
		{uvBasic(pipe.DialectNative), allSizes, bothWays},
		{sharedSpec(pipe.DialectNative, 0), smallSizes, bothWays},
		{direct(), largeSizes, []bool{true}},
		{besideRings, largeSizes, []bool{true}},
		{fourLanes(), largeSizes, []bool{true}},
	} {
		forEachMessage(b, l, func(b *testing.B, s Spec) {
			s.RoundTrips, s.OneWay = min(DefaultTrips(s.Size), 2000), DefaultMessages(s.Size)
			if s.Size < bigSize {
				s.ColdTrips = 100
			}
			versus(b, s)
		})
	}
}

func versus(b *testing.B, s Spec) {
	both := &Comparison{}
	for b.Loop() {
		c, err := Compare(b.Context(), Go{Child: child(b)}, Libtensorpipe{}, s, versusPairs)
		require.NoError(b, err)
		if len(c.A) == 0 || len(c.B) == 0 {
			b.Skip(errors.Join(c.WhyA, c.WhyB))
		}
		both.A, both.B = append(both.A, c.A...), append(both.B, c.B...)
	}
	b.ReportMetric(0, "ns/op")
	figures := map[string]Figure{"rtt-us": RTT, "rtt-cpu-us": CPUPerTrip, "cold-rtt-us": ColdRTT, "messages/s": Rate}
	if s.Size >= bigSize {
		figures = map[string]Figure{"rtt-us": RTT, "rtt-cpu-us": CPUPerTrip, "GB/s": Bandwidth, "cpu-s/GB": CPUPerGB}
	}
	for unit, f := range figures {
		goValue, peerValue := both.Medians(f)
		b.ReportMetric(goValue, unit)
		b.ReportMetric(peerValue, "libtensorpipe-"+unit)
		b.ReportMetric(both.Ratio(f), "ratio-"+unit)
	}
}
