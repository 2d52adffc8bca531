package bench

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// checkViable returns an error that matches ErrPath if s names transports or channels and one of
// them does not work on this machine, according to its entry in o. Otherwise it returns nil.
// Transports are not checked if s names none, since some of the default ones may not work; the same
// holds for channels.
func checkViable(s Spec, o pipe.Options) error {
	for _, e := range o.Transports {
		if err := e.Transport.Viable(); err != nil && len(s.Transports) > 0 {
			return &PathError{"transport " + e.Name, err}
		}
	}
	for _, e := range o.Channels {
		if err := e.Factory.Viable(); err != nil && len(s.Channels) > 0 {
			return &PathError{"channel " + e.Name, err}
		}
	}
	return nil
}

// devices returns the devices with the tensors of the client and of the server: those of s, or the host.
func (s Spec) devices() (client, server device.Device) {
	s = s.withDefaults()
	return cmp.Or(s.Device, device.CPU()), cmp.Or(s.ServerDevice, device.CPU())
}

// checkPath returns nil if the plan of the client's pipe has a channel between the devices of s.
// Otherwise it returns a *PathError with the reasons for which channels were rejected, and the reason for
// which two GPUs of kind cannot access each other. kind is nil for host memory.
func checkPath(s Spec, plan *pipe.Plan, kind *cudaipc.Kind) error {
	client, server := s.devices()
	if _, found := plan.Channel(client, server); found {
		return nil
	}
	var why []string
	for _, r := range plan.Refused {
		if r.Kind == pipe.CandidateChannel {
			why = append(why, r.Name+": "+r.Reason)
		}
	}
	if kind != nil {
		if err := kind.CheckPeers(client, server); err != nil {
			why = append(why, err.Error())
		}
	}
	return &PathError{"channel " + strings.Join(s.Channels, ","), errors.New(cmp.Or(strings.Join(why, "; "), fmt.Sprintf("no channel between %v and %v", client, server)))}
}

// route returns the names of the channels that sent or received tensors between two snapshots of a
// pipe's statistics, separated by commas. tensors is the number of tensors that the pipe carried in
// that time. If the channels carried fewer, the names end with Inline. If tensors is 0 and no
// channel carried any, route returns "".
func route(before, after pipe.PipeStats, tensors int) string {
	var names []string
	for i, c := range after.Channels {
		b := before.Channels[i]
		if n := c.Sent.Messages + c.Received.Messages - b.Sent.Messages - b.Received.Messages; n > 0 {
			names = append(names, c.Name)
			tensors -= int(n)
		}
	}
	if tensors > 0 {
		names = append(names, Inline)
	}
	return strings.Join(names, ",")
}

// Inline is the route of tensors inside their messages. Bulk is the route of those that a channel
// leaves to the pipe's bulk connection.
const (
	Inline = "inline"
	Bulk   = "bulk"
)

// replaceLanesWithBulk replaces the channel mpt_uv by Bulk in the routes of r, if the pipe uses the
// native dialect and mpt_uv opens no lanes for tensors of this size. Otherwise it does nothing.
// Tensors that took the bulk connection before the first lanes were open are not distinguished.
func (r *Result) replaceLanesWithBulk() {
	if r.Dialect != pipe.DialectNative || r.Connections > 0 && r.SizeBytes >= mpt.NativeBytes {
		return
	}
	for _, route := range []*string{&r.TripRoute, &r.OneWayRoute} {
		names := strings.Split(*route, ",")
		for i, name := range names {
			if name == mpt.UVName {
				names[i] = Bulk
			}
		}
		*route = strings.Join(names, ",")
	}
}

// Catalog returns all transports and channels that a Spec may name, with the given options. It must
// return new entries at each call. A nil Catalog stands for [tensorpipe.DefaultProfile] with the
// options of the Tuning.
type Catalog func(Tuning) tensorpipe.Profile

// Tuning holds the options of a Spec that concern transports and channels.
type Tuning struct {
	Lanes int          // lanes of the channel mpt_uv
	TCP   []uv.Option  // of everything that opens TCP connections, lanes included
	Shm   []shm.Option // of the transport shm

	AllowAnyTracer bool // option of the channel cma
}

// profile returns those transports and channels of the catalog that s names. Where s names none, it
// returns those that a pipe uses by default. A nil c stands for defaultCatalog. The error matches
// ErrSpec if the catalog has no entry of that name.
func (c Catalog) profile(s Spec) (p tensorpipe.Profile, err error) {
	t := Tuning{Lanes: s.withDefaults().Lanes, AllowAnyTracer: s.AllowAnyTracer}
	if s.NoSpin {
		t.TCP, t.Shm = []uv.Option{uv.WithSpin(0)}, []shm.Option{shm.WithSpin(0)}
	}
	if s.BusyPolling {
		t.TCP, t.Shm = append(t.TCP, uv.WithBusyPolling()), append(t.Shm, shm.WithBusyPolling())
	}
	if c == nil {
		c = defaultCatalog
	}
	all, plain := c(t), tensorpipe.DefaultProfile()
	p.Transports, err = pick("transport", all.Transports, s.Transports, plain.Transports, func(e pipe.TransportEntry) string { return e.Name })
	if err == nil {
		p.Channels, err = pick("channel", all.Channels, s.Channels, plain.Channels, func(e pipe.ChannelEntry) string { return e.Name })
	}
	return p, err
}

// defaultCatalog returns the default transports and channels of this library, in which uv, shm,
// mpt_uv and cma have the options of t. A nil Catalog stands for it.
func defaultCatalog(t Tuning) tensorpipe.Profile {
	p := tensorpipe.DefaultProfile()
	for i, e := range p.Transports {
		switch e.Name {
		case tcpTransport:
			p.Transports[i].Transport = uv.New(t.TCP...)
		case shm.Name:
			p.Transports[i].Transport = shm.New(t.Shm...)
		}
	}
	for i, e := range p.Channels {
		switch e.Name {
		case mpt.UVName:
			p.Channels[i].Factory = mpt.New(mpt.Lanes{Count: t.Lanes, Transport: uv.New(t.TCP...)})
		case cma.Name:
			p.Channels[i].Factory = cma.New(cma.Options{AllowAnyTracer: t.AllowAnyTracer})
		}
	}
	return p
}

// tcpTransport is the name of the TCP transport.
const tcpTransport = "uv"

// pick returns those entries of the slice all whose names are wanted, in the same order. If wanted
// is empty, pick takes the names of the entries of plain instead. The result uses the memory of the
// slice all, which pick overwrites. The error matches ErrSpec if there is no entry with a wanted
// name; its text calls an entry by the string what.
func pick[E any](what string, all []E, wanted []string, plain []E, name func(E) string) ([]E, error) {
	if len(wanted) == 0 {
		for _, e := range plain {
			wanted = append(wanted, name(e))
		}
	}
	for _, w := range wanted {
		if !slices.ContainsFunc(all, func(e E) bool { return name(e) == w }) {
			return nil, specErrorf("there is no %s %q", what, w)
		}
	}
	return slices.DeleteFunc(all, func(e E) bool { return !slices.Contains(wanted, name(e)) }), nil
}
