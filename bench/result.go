package bench

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// Result is one measurement.
type Result struct {
	Subject   string `json:"subject"`
	Transport string `json:"transport"`
	Channel   string `json:"channel"` // for tensors from host memory to host memory
	Dialect   string `json:"dialect"`

	// Which way the tensors really went in the round trips and one way: channels,
	// Inline or Bulk, separated by commas; empty if there were none. Path says which
	// they might go.
	TripRoute   string `json:"rtt_route"`
	OneWayRoute string `json:"one_way_route"`

	SizeBytes  int    `json:"size_bytes"`
	Named      bool   `json:"named"`
	Buffers    string `json:"buffers"`
	Depth      int    `json:"depth"`
	Data       string `json:"data"`
	Messages   int    `json:"messages"`    // one way
	RoundTrips int    `json:"round_trips"` // warm
	Processes  int    `json:"processes"`   // 1 or 2

	// Connections is the number of lanes that mpt_uv has for tensors large enough,
	// or of plain TCP connections; 0 for all else.
	Connections int `json:"connections,omitempty"`

	RTT  *Percentiles `json:"rtt_us"`      // null if not measured
	Cold *Percentiles `json:"rtt_cold_us"` // after idleness

	// CPUPerTrip is microseconds of processor time of both processes for a
	// warm round trip: whoever spins pays with it for speed.
	CPUPerTrip float64 `json:"rtt_cpu_us"`

	// GBps is in 10^9 bytes per second, 0 for empty messages.
	GBps              float64 `json:"gbytes_per_second"`
	MessagesPerSecond float64 `json:"messages_per_second"`
	CPUSeconds        float64 `json:"cpu_seconds"` // of both processes, one way
	CPUSecondsPerGB   float64 `json:"cpu_seconds_per_gbyte"`

	Compression pipe.Compression `json:"compression"`
	WireShare   float64          `json:"wire_bytes_per_byte"` // what of the tensors travelled, over all messages

	Congestion string `json:"tcp_congestion_control,omitempty"` // see CongestionControl

	// Path is the plan of the pipe: what the two ends have agreed on, and what was
	// refused, before the first message. It does not say what was used.
	Path *pipe.Plan `json:"path"`
}

// Subject is a library that can be measured.
type Subject interface {
	// Name is what results call it.
	Name() string

	// Measure starts what it needs, measures and ends it again. The end of ctx
	// ends it early, with an error.
	Measure(ctx context.Context, s Spec) (*Result, error)
}

// newResult does the sums.
func newResult(subject string, s Spec, plan *pipe.Plan, samples Samples) *Result {
	s = s.withDefaults()
	r := &Result{
		Subject: subject, Transport: plan.Transport, Channel: channelOf(plan), Dialect: plan.Dialect,
		SizeBytes: s.Size, Named: s.Named, Buffers: s.Buffers, Depth: s.Depth,
		Data: s.Data, Compression: s.Compression, WireShare: 1,
		Messages: samples.Messages, RoundTrips: len(samples.RoundTrips), Processes: 2,
		RTT: percentiles(samples.RoundTrips), Cold: percentiles(samples.ColdTrips),
		CPUPerTrip: samples.TripCPU.Seconds() * 1e6 / float64(max(len(samples.RoundTrips), 1)),
		CPUSeconds: samples.CPU.Seconds(),
		TripRoute:  samples.TripRoute, OneWayRoute: samples.OneWayRoute,
		Path: plan,
	}
	if plan.Transport == tcpTransport {
		r.Congestion = CongestionControl()
	}
	if s.OneProcess {
		r.Processes = 1
	}
	if r.Channel == mpt.UVName {
		r.Connections = lanes(r, s.Lanes)
	}
	r.withoutLanes()
	r.setRate(samples.OneWay)
	return r
}

// lanes is how many a channel of so many opens on the path of r. Both ends are on
// this machine, and so agree on the number.
func lanes(r *Result, most int) int {
	switch {
	case r.Dialect == pipe.DialectCompatible:
		return most
	case r.Transport == tcpTransport:
		return mpt.NativeLanes(most)
	default:
		return 0 // within one machine
	}
}

// setRate does the sums about what went one way, in that time.
func (r *Result) setRate(took time.Duration) {
	if took <= 0 {
		return
	}
	gb := float64(r.SizeBytes) * float64(r.Messages) / 1e9
	r.GBps = gb / took.Seconds()
	r.MessagesPerSecond = float64(r.Messages) / took.Seconds()
	if gb > 0 {
		r.CPUSecondsPerGB = r.CPUSeconds / gb
	}
}

// channelOf is the channel for host memory, or what there is instead of one.
func channelOf(plan *pipe.Plan) string {
	if name, ok := plan.Channel(device.CPU(), device.CPU()); ok {
		return name
	}
	var names []string
	for _, c := range plan.Channels {
		if !slices.Contains(names, c.Channel) {
			names = append(names, c.Channel)
		}
	}
	return strings.Join(names, ",")
}
