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

// Result is the result of one measurement.
type Result struct {
	Subject   string       `json:"subject"`
	Transport string       `json:"transport"`
	Channel   string       `json:"channel"` // between the devices, or from host memory to host memory
	Dialect   pipe.Dialect `json:"dialect"`

	// TripRoute and OneWayRoute are the routes that the tensors took in the round trips and one
	// way: channels, Inline or Bulk, separated by commas; empty if there were none. Path has the
	// routes that were possible.
	TripRoute   string `json:"rtt_route"`
	OneWayRoute string `json:"one_way_route"`

	// Device and ServerDevice are the GPUs with the tensors of the client and of the server; absent
	// for host memory.
	Device       device.Device `json:"device,omitzero"`
	ServerDevice device.Device `json:"server_device,omitzero"`

	SizeBytes  int    `json:"size_bytes"`
	Named      bool   `json:"named"`
	Buffers    string `json:"buffers"`
	Depth      int    `json:"depth"`
	Data       string `json:"data"`
	Messages   int    `json:"messages"`    // one way
	RoundTrips int    `json:"round_trips"` // warm
	Processes  int    `json:"processes"`   // 1 or 2

	// Connections is the number of lanes of mpt_uv for tensors that are large enough, or of plain
	// TCP connections; 0 for all other routes.
	Connections int `json:"connections,omitempty"`

	RTT  *Percentiles `json:"rtt_us"`      // null if not measured
	Cold *Percentiles `json:"rtt_cold_us"` // after idleness

	// HandOver is the time from the client's Write to the return of the server's Read, in warm round
	// trips of tensors on GPUs.
	HandOver *Percentiles `json:"hand_over_us,omitempty"`

	// CPUPerTrip is the CPU time of both processes per warm round trip in microseconds. Spinning
	// increases it.
	CPUPerTrip float64 `json:"rtt_cpu_us"`

	// GBps is in 10^9 bytes per second, 0 for empty messages.
	GBps              float64 `json:"gbytes_per_second"`
	MessagesPerSecond float64 `json:"messages_per_second"`
	CPUSeconds        float64 `json:"cpu_seconds"` // of both processes, one way
	CPUSecondsPerGB   float64 `json:"cpu_seconds_per_gbyte"`

	Compression pipe.Compression `json:"compression"`
	WireShare   float64          `json:"wire_bytes_per_byte"` // bytes sent per byte of tensors, over all messages

	Congestion string `json:"tcp_congestion_control,omitempty"` // see CongestionControl

	// Path is the plan of the pipe: what both ends agreed on, and the rejected candidates, before
	// the first message. The routes tell which parts of it were used.
	Path *pipe.Plan `json:"path"`
}

// Subject is a library that can be measured.
type Subject interface {
	// Name returns the name of the subject in results.
	Name() string

	// Measure starts the processes, measures, and stops them. It returns early with an error when
	// ctx ends.
	Measure(ctx context.Context, s Spec) (*Result, error)
}

// newResult returns the result of measuring the subject with s, computed from the samples and the
// plan of the pipe. The result keeps plan.
func newResult(subject string, s Spec, plan *pipe.Plan, samples Samples) *Result {
	s = s.withDefaults()
	r := &Result{
		Subject: subject, Transport: plan.Transport, Channel: channelOf(s, plan), Dialect: plan.Dialect,
		Device: s.Device, ServerDevice: s.ServerDevice, HandOver: percentiles(samples.HandOver),
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
		// Both ends are on this machine, so they open the same number of lanes.
		switch {
		case r.Dialect == pipe.DialectCompatible:
			r.Connections = s.Lanes
		case r.Transport == tcpTransport:
			r.Connections = mpt.NativeLanes(s.Lanes)
		}
	}
	r.replaceLanesWithBulk()
	r.setRate(samples.OneWay)
	return r
}

// setRate sets the one-way bandwidth, the rate and the CPU time per byte of r from its size,
// messages and CPU time. took is the time in which all messages were sent; if it is 0 or less,
// setRate changes nothing.
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

// channelOf returns the name of the channel in plan, that of the client, between the devices of s. If
// there is none, it returns the names of all channels of plan, separated by commas, or "".
func channelOf(s Spec, plan *pipe.Plan) string {
	if name, ok := plan.Channel(s.devices()); ok {
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
