package bench

import (
	"cmp"
	"errors"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// findPath returns an error that matches ErrPath where an entry that s names
// cannot be used on this machine.
func findPath(s Spec, o pipe.Options) error {
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

// checkPath returns an error that matches ErrPath where a pipe cannot carry the
// messages.
func checkPath(s Spec, plan *pipe.Plan) error {
	if _, found := plan.Channel(device.CPU(), device.CPU()); found {
		return nil
	}
	var why []string
	for _, r := range plan.Refused {
		if r.What == "channel" {
			why = append(why, r.Name+": "+r.Reason)
		}
	}
	return &PathError{"channel " + strings.Join(s.Channels, ","), errors.New(cmp.Or(strings.Join(why, "; "), "it is not for host memory"))}
}

// route says which way so many tensors went, there or back, between two looks at a
// pipe: the channels, and "inline" for those that were within their messages; ""
// where there were none.
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

// Inline is the route of tensors that travel within their messages, and Bulk that of
// those which a channel leaves to the pipe's own way for host memory.
const (
	Inline = "inline"
	Bulk   = "bulk"
)

// withoutLanes puts Bulk in the place of mpt_uv for tensors that it has no lanes for.
// In the native dialect that is a matter of their size, and of the pipe. What was sent
// before the first lanes were open, and took the same way, does not show.
func (r *Result) withoutLanes() {
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
