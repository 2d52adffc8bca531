package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

var sizes = []int{0, 8, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20}

// pathSpecs are the paths between two processes that this version has.
func pathSpecs() []Spec {
	uv := Spec{Transports: []string{"uv"}, Channels: []string{"basic"}}
	native, compatible := uv, uv
	native.Dialect, compatible.Dialect = pipe.DialectNative, pipe.DialectCompatible
	return []Spec{native, compatible}
}

// connected runs work on a client whose server is a second process.
func connected(b *testing.B, s Spec, work func(*client)) {
	g := Go{Child: child(b)}
	end, err := g.start(b.Context(), s)
	require.NoError(b, err)
	defer end.stop()
	require.NoError(b, withClient(b.Context(), s, end.url, func(c *client, _ *pipe.Plan) error {
		work(c)
		return nil
	}))
}

// label names a path as benchstat wants it. Every spec here leads to one path.
func label(s Spec) string {
	return fmt.Sprintf("transport=%s/channel=%s/dialect=%s", s.Transports[0], s.Channels[0], s.Dialect)
}

// BenchmarkRoundTrip: one operation is a message to a second process and its
// echo. Allocations are those of this process.
func BenchmarkRoundTrip(b *testing.B) {
	forAll(b, func(b *testing.B, c *client) {
		require.NoError(b, c.begin(kindEcho, len(c.sent)))
		b.SetBytes(2 * int64(c.spec.Size))
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			if i == len(c.sent) {
				b.StopTimer()
				require.NoError(b, c.endTrips(i))
				require.NoError(b, c.begin(kindEcho, i))
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
		require.NoError(b, c.endTrips(i))
	})
}

// BenchmarkOneWay: one operation is a batch of messages to a second process, 8
// of them in flight. The figures of one message are metrics.
func BenchmarkOneWay(b *testing.B) {
	forAll(b, func(b *testing.B, c *client) {
		var took, cpu time.Duration
		n := 0
		for b.Loop() {
			t, used, err := c.flood(len(c.sent))
			require.NoError(b, err)
			took, cpu, n = took+t, cpu+used, n+len(c.sent)
		}
		bytes := float64(n) * float64(c.spec.Size)
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(float64(n)/took.Seconds(), "messages/s")
		if c.spec.Size >= 1<<20 { // below that messages cost, not bytes
			b.ReportMetric(bytes/1e9/took.Seconds(), "GB/s")
			b.ReportMetric(cpu.Seconds()/(bytes/1e9), "cpu-s/GB")
		}
	})
}

// forAll runs a benchmark on all paths and sizes, with and without the target
// device named.
func forAll(b *testing.B, run func(*testing.B, *client)) {
	for _, path := range pathSpecs() {
		name := label(path)
		for _, size := range sizes {
			for _, named := range []bool{true, false} {
				if size == 0 && !named {
					continue // without a tensor there is nothing to name
				}
				b.Run(fmt.Sprintf("%s/size=%d/named=%t", name, size, named), func(b *testing.B) {
					s := path
					s.Size, s.Named = size, named
					connected(b, s, func(c *client) { run(b, c) })
				})
			}
		}
	}
}

// BenchmarkVersusLibtensorpipe measures this library and the C++ one in turn:
// one operation is a pair of measurements, of which -benchtime 5x makes five.
// Ratios are medians of those of the pairs, this library's figure by the other's.
func BenchmarkVersusLibtensorpipe(b *testing.B) {
	if err := (Libtensorpipe{}).Build(); errors.Is(err, errors.ErrUnsupported) {
		b.Skip(err)
	}
	for _, path := range pathSpecs() {
		name := label(path)
		for _, size := range sizes {
			for _, named := range []bool{true, false} {
				if size == 0 && !named {
					continue
				}
				s := path
				s.Size, s.Named = size, named
				s.RoundTrips, s.ColdTrips, s.OneWay = DefaultCount(size), min(DefaultCount(size), 200), DefaultCount(size)
				b.Run(fmt.Sprintf("%s/size=%d/named=%t", name, size, named), func(b *testing.B) { versus(b, s) })
			}
		}
	}
}

func versus(b *testing.B, s Spec) {
	both := &Comparison{}
	for b.Loop() {
		c, err := Compare(b.Context(), Go{Child: child(b)}, Libtensorpipe{}, s, 1)
		require.NoError(b, err)
		both.A, both.B = append(both.A, c.A...), append(both.B, c.B...)
	}
	b.ReportMetric(0, "ns/op")
	figures := map[string]Figure{"rtt-us": RTT, "cold-rtt-us": ColdRTT, "messages/s": Rate}
	if s.Size >= 1<<20 {
		figures = map[string]Figure{"rtt-us": RTT, "GB/s": Bandwidth, "cpu-s/GB": CPUPerGB}
	}
	for unit, f := range figures {
		ours, theirs := both.Medians(f)
		b.ReportMetric(ours, unit)
		b.ReportMetric(theirs, "libtensorpipe-"+unit)
		b.ReportMetric(both.Ratio(f), "ratio-"+unit)
	}
}

// BenchmarkSmallMessage counts the allocations of both ends, which are in one
// process for that: one operation is a message with metadata, a payload and a
// tensor, written at one end and read at the other.
func BenchmarkSmallMessage(b *testing.B) {
	long, cancel := context.WithCancel(context.Background())
	defer cancel()
	background := func() (context.Context, context.CancelFunc) { return context.Background(), func() {} }
	cancellable := func() (context.Context, context.CancelFunc) { return long, func() {} }
	deadline := func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(context.Background(), time.Minute)
	}
	for _, path := range pathSpecs() {
		b.Run("dialect="+path.Dialect+"/ctx=background", func(b *testing.B) { smallMessages(b, path, background) })
		b.Run("dialect="+path.Dialect+"/ctx=cancellable", func(b *testing.B) { smallMessages(b, path, cancellable) })
		b.Run("dialect="+path.Dialect+"/ctx=fresh-deadline", func(b *testing.B) { smallMessages(b, path, deadline) })
	}
}

func smallMessages(b *testing.B, path Spec, fresh func() (context.Context, context.CancelFunc)) {
	client, server := joined(b, path)
	m := &pipe.Message{
		Metadata: make([]byte, 16),
		Payloads: []pipe.Payload{{Data: make([]byte, 32)}},
		Tensors:  []pipe.Tensor{{Buffer: device.Bytes(make([]byte, 64)), TargetDevice: device.CPU()}},
	}
	a := pipe.Allocation{Payloads: [][]byte{make([]byte, 32)}, Tensors: []device.Buffer{device.Bytes(make([]byte, 64))}}
	b.ReportAllocs()
	for b.Loop() {
		ctx, cancel := fresh()
		if err := client.Write(ctx, m); err != nil {
			b.Fatal(err)
		}
		in, err := server.Next(ctx)
		if err != nil {
			b.Fatal(err)
		}
		if err := in.Read(ctx, a); err != nil {
			b.Fatal(err)
		}
		in.Release()
		cancel()
	}
}

// joined is both ends of a pipe in this process.
func joined(t testing.TB, s Spec) (client, server *pipe.Pipe) {
	t.Helper()
	opts, err := s.options("bench")
	require.NoError(t, err)
	return joinedBy(t, opts)
}

func joinedBy(t testing.TB, opts pipe.Options) (client, server *pipe.Pipe) {
	t.Helper()
	pc, err := pipe.New(opts)
	require.NoError(t, err)
	t.Cleanup(func() { pc.Close() })
	l, err := pc.Listen(t.Context(), "uv://127.0.0.1:0")
	require.NoError(t, err)
	client, err = pc.Dial(t.Context(), l.URLs()[0])
	require.NoError(t, err)
	server, err = l.Accept(t.Context())
	require.NoError(t, err)
	return client, server
}

// BenchmarkIdlePipes opens 1000 pipes to a second process and looks at both for
// 10 seconds.
func BenchmarkIdlePipes(b *testing.B) {
	for _, path := range pathSpecs() {
		b.Run(label(path), func(b *testing.B) {
			for b.Loop() {
				cost, err := Go{Child: child(b)}.Idle(b.Context(), path, 1000, 10*time.Second)
				require.NoError(b, err)
				for name, end := range map[string]EndCost{"client": cost.Client, "server": cost.Server} {
					b.ReportMetric(100*end.Core, name+"-core-%")
					b.ReportMetric(float64(end.BytesPerPipe)/1024, name+"-KiB/pipe")
					b.ReportMetric(end.DescriptorsPerPipe, name+"-fds/pipe")
				}
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkBusyPairs: four pairs of processes make round trips at once, with
// spinning and without, in turn. The ratio of each pair is that of its median
// round trip with spinning by that without; slots are compared, of which the
// slowest counts.
func BenchmarkBusyPairs(b *testing.B) {
	const pairs = 4
	spec := pathSpecs()[0]
	spec.Size, spec.Named = 8, true
	still := spec
	still.NoSpin = true
	var spins, sleeps [pairs][]float64
	var ratios []float64
	for i := 0; b.Loop(); i++ {
		run := func(s Spec, out *[pairs][]float64) {
			got, err := Go{Child: child(b)}.Busy(b.Context(), s, pairs, 2*time.Second)
			require.NoError(b, err)
			slices.SortFunc(got, func(x, y *Percentiles) int { return cmp.Compare(x.P50, y.P50) })
			for slot, p := range got {
				out[slot] = append(out[slot], p.P50)
			}
		}
		if i%2 == 0 {
			run(spec, &spins)
			run(still, &sleeps)
		} else {
			run(still, &sleeps)
			run(spec, &spins)
		}
	}
	for slot := range pairs {
		b.ReportMetric(median(spins[slot]), fmt.Sprintf("spin-pair%d-p50-us", slot+1))
		b.ReportMetric(median(sleeps[slot]), fmt.Sprintf("sleep-pair%d-p50-us", slot+1))
		var pairRatios []float64
		for i := range spins[slot] {
			pairRatios = append(pairRatios, spins[slot][i]/sleeps[slot][i])
		}
		ratios = append(ratios, median(pairRatios))
	}
	b.ReportMetric(slices.Max(ratios), "worst-ratio")
	b.ReportMetric(0, "ns/op")
}
