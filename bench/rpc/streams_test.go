package rpc

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/bench/internal/rpcpeer"
)

const (
	valueBytes = 64 // of a small value
	flows      = 10 // streams that are measured in each direction
	echoes     = 10_000
)

// streamTimes are the medians of a measurement, in microseconds for each value.
type streamTimes struct{ receive, send, echo float64 }

// measureStreams measures n streams in each direction, each of length values, and as many echoes.
func measureStreams(t testing.TB, a *agent.Agent, n, length, echoes int) streamTimes {
	t.Helper()
	flow := Flow{length, valueBytes}
	perValue := func(times Times, values int) float64 {
		return float64(times.P50) / float64(values) / float64(time.Microsecond)
	}
	received, err := Sequential(t.Context(), 2, n, func(ctx context.Context) error { return receiveValues(ctx, a, "worker1", flow) })
	require.NoError(t, err)
	sent, err := Sequential(t.Context(), 2, n, func(ctx context.Context) error { return sendValues(ctx, a, "worker1", flow) })
	require.NoError(t, err)
	echo, end, err := openEcho(t.Context(), a, "worker1", valueBytes)
	require.NoError(t, err)
	echoed, err := Sequential(t.Context(), echoes/10, echoes, echo)
	require.NoError(t, err)
	require.NoError(t, end())
	return streamTimes{perValue(received, length), perValue(sent, length), perValue(echoed, 1)}
}

// TestStreams tests that the streams that are measured work over each transport.
func TestStreams(t *testing.T) {
	for _, path := range paths {
		t.Run("transport="+path.name, func(t *testing.T) {
			times := measureStreams(t, group(t, 2, path.listen), 2, 100, 100)
			require.Positive(t, times.receive)
			require.Positive(t, times.send)
			require.Positive(t, times.echo)
		})
	}
}

// BenchmarkStreams measures streams of small values over each transport: one way, in both directions,
// and back and forth.
func BenchmarkStreams(b *testing.B) {
	for _, path := range paths {
		b.Run("transport="+path.name, func(b *testing.B) {
			a := group(b, 2, path.listen)
			for b.Loop() {
				t := measureStreams(b, a, flows, rpcpeer.StreamLength, echoes)
				b.ReportMetric(t.receive, "receive-us")
				b.ReportMetric(t.send, "send-us")
				b.ReportMetric(t.echo, "echo-us")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}

// BenchmarkStreamsVersus compares streams of small values with those of grpc-go, alternately, in five
// pairs. A ratio is the median over the pairs of this library's time divided by that of grpc-go.
func BenchmarkStreamsVersus(b *testing.B) {
	for _, c := range []struct{ over, listen string }{{rpcpeer.Unix, ""}, {rpcpeer.TCP, overTCP}} {
		b.Run("peer=grpc/over="+c.over, func(b *testing.B) {
			peer := findPeer(b, "grpc")
			a := group(b, 2, c.listen)
			for b.Loop() {
				s := samples{}
				for range 5 {
					r, err := peer.Run(b.Context(), rpcpeer.Config{Over: c.over, Jobs: []rpcpeer.Job{
						rpcpeer.Receive(valueBytes, flows), rpcpeer.Send(valueBytes, flows), rpcpeer.Echo(valueBytes, echoes),
					}})
					require.NoError(b, err)
					own := measureStreams(b, a, flows, rpcpeer.StreamLength, echoes)
					s.compareTimes("receive", own.receive, r[0].P50/rpcpeer.StreamLength)
					s.compareTimes("send", own.send, r[1].P50/rpcpeer.StreamLength)
					s.compareTimes("echo", own.echo, r[2].P50)
				}
				for name, v := range s {
					b.ReportMetric(median(v), name)
				}
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}

// compareTimes adds to s this library's time and that of the peer, and the quotient of the two.
func (s samples) compareTimes(what string, own, peer float64) {
	s.add(what+"-us", own)
	s.add("peer-"+what+"-us", peer)
	s.add(what+"-of-peer", own/peer)
}
