package pipe

import (
	"context"
	"fmt"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// lane is a channel of a pipe.
type lane struct {
	name    string
	channel channel.Channel
	fitter  channel.Fitter // is channel, nil if all tensors fit

	// The numbering of transfers in the compatible dialect.
	nextSend uint64 // guarded by outbox.mu
	nextRecv uint64 // belongs to the message whose turn it is to be read

	sent, received traffic
}

// fits says why a tensor cannot be sent on the lane, or is nil.
func (l *lane) fits(src device.Buffer) error {
	if l.fitter == nil {
		return nil
	}
	if err := l.fitter.Fits(src); err != nil {
		return fmt.Errorf("channel %s: %w", l.name, err)
	}
	return nil
}

// sizedLane is the lane of the tensors of fewer than so many bytes; 0 is all.
type sizedLane struct {
	below int
	lane  *lane
}

// laneFor is the channel for n bytes between two devices, of which it is known
// that there is one.
func (p *Pipe) laneFor(local, remote device.Device, n int) *lane {
	all := p.between(local, remote)
	l := all[0].lane
	for _, s := range all[1:] {
		if n < s.below {
			l = s.lane
		}
	}
	return l
}

// openChannel makes a channel over link, which lacks what is the same for all.
func (p *Pipe) openChannel(ctx context.Context, e ChannelEntry, link channel.Link, broken func(*lane, error)) error {
	l := &lane{name: e.Name}
	link.Peer = p.peerName()
	link.First = p.first
	link.Checksum = p.context.opts.Checksum
	link.Arrived = p.arrived
	link.Logger = p.context.log
	link.Broken = func(err error) { broken(l, err) }
	var err error
	if l.channel, err = e.Factory.New(ctx, link, p.role); err != nil {
		return fmt.Errorf("channel %s: %w", e.Name, err)
	}
	l.fitter, _ = l.channel.(channel.Fitter)
	p.channels = append(p.channels, l)
	return nil
}

// assignLanes gives the pairs of devices their channels, once all are open.
func (p *Pipe) assignLanes(all routes) {
	for pair, way := range all {
		below := 0
		for _, h := range way {
			l, _ := find(p.channels, func(l *lane) bool { return l.name == h.channel })
			p.lanes[pair] = append(p.lanes[pair], sizedLane{below, l})
			below = h.from
		}
		p.arriving[pair.remote] = pair.local
		p.leaving[pair.local] = struct{}{}
	}
	p.hostLanes = p.lanes[hostPair]
}

var hostPair = devicePair{device.CPU(), device.CPU()}

// between is the channels of a pair of devices, those of the largest tensors first.
// It is asked for each tensor, and nearly all are in host memory.
func (p *Pipe) between(local, remote device.Device) []sizedLane {
	if local == hostPair.local && remote == hostPair.remote {
		return p.hostLanes
	}
	return p.lanes[devicePair{local, remote}]
}

func (p *Pipe) closeChannels(cause error) {
	for _, l := range p.channels {
		l.channel.Close(cause)
	}
}

// lane finds the channel from a local to a remote device.
func (p *Pipe) lane(local, remote device.Device) (*lane, error) {
	if all := p.between(local, remote); all != nil {
		return all[0].lane, nil
	}
	return nil, fmt.Errorf("%w: %s here to %s there; %s", ErrNoChannel, local, remote, p.refusedChannels())
}

// checkSource reports whether any channel serves a local device.
func (p *Pipe) checkSource(source device.Device) error {
	if source == hostPair.local && p.hostLanes != nil {
		return nil
	}
	if _, ok := p.leaving[source]; ok {
		return nil
	}
	_, err := p.lane(source, device.Device{})
	return err
}

// checkArrival reports whether a channel can deliver a tensor of the peer.
func (p *Pipe) checkArrival(t *TensorDescriptor) error {
	if !t.TargetDevice.IsZero() {
		_, err := p.lane(t.TargetDevice, t.SourceDevice)
		return err
	}
	if _, ok := p.arriving[t.SourceDevice]; ok {
		return nil
	}
	_, err := p.lane(device.Device{}, t.SourceDevice)
	return err
}

func (p *Pipe) refusedChannels() string {
	var reasons []string
	for _, r := range p.plan.Refused {
		if r.What == "channel" {
			reasons = append(reasons, r.String())
		}
	}
	if len(reasons) == 0 {
		return "no channel serves them"
	}
	return strings.Join(reasons, "; ")
}
