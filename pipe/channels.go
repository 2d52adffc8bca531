package pipe

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// pipeChannel is one of a pipe's channels, with its counters.
type pipeChannel struct {
	name       string
	channel    channel.Channel
	compatible channel.Compatible // channel, if it implements that; otherwise nil

	// The ids of the next transfers in the compatible dialect.
	nextSend uint64 // guarded by compatWriter.mu
	nextRecv uint64 // used by the message that is next to be read

	sent, received traffic
}

// fits returns an error if the channel cannot send src, and otherwise nil. It checks only channels that
// implement channel.Compatible.
func (l *pipeChannel) fits(src device.Buffer) error {
	if l.compatible == nil {
		return nil
	}
	if err := l.compatible.Fits(src); err != nil {
		return fmt.Errorf("channel %s: %w", l.name, err)
	}
	return nil
}

// sizedChannel is the channel for tensors of fewer than below bytes; if below is 0, of all tensors.
type sizedChannel struct {
	below   int
	channel *pipeChannel
}

// channelFor returns the channel for a tensor of n bytes, as transferred, between a local and a remote
// device. It panics if there is none; callers check that with findChannel before.
func (p *Pipe) channelFor(local, remote device.Device, n int) *pipeChannel {
	all := p.channelsBetween(local, remote)
	l := all[0].channel
	for _, s := range all[1:] {
		if n < s.below {
			l = s.channel
		}
	}
	return l
}

// openChannel opens the channel of e over link and adds it to p.channels. It sets the fields of link
// that are the same for all channels. The channel owns the connections of link, even if openChannel
// fails. broken is called at most once, when the channel fails.
func (p *Pipe) openChannel(ctx context.Context, e ChannelEntry, link channel.Link, broken func(*pipeChannel, error)) error {
	l := &pipeChannel{name: e.Name}
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
	l.compatible, _ = l.channel.(channel.Compatible)
	p.channels = append(p.channels, l)
	return nil
}

// assignChannels assigns channels to the pairs of devices according to all. Every channel in all must
// be open. It is called once, before messages are sent or received.
func (p *Pipe) assignChannels(all routes) {
	for pair, way := range all {
		below := 0
		for _, h := range way {
			l, _ := find(p.channels, func(l *pipeChannel) bool { return l.name == h.channel })
			p.channelsByPair[pair] = append(p.channelsByPair[pair], sizedChannel{below, l})
			below = h.from
		}
		p.recvDevices[pair.remote] = pair.local
		p.sendDevices[pair.local] = struct{}{}
	}
	p.hostChannels = p.channelsByPair[hostPair]
}

var hostPair = devicePair{device.CPU(), device.CPU()}

// channelsBetween returns the channels between a local and a remote device, or nil if there are none.
// The channel of the largest tensors comes first. The caller must not change the result. Host memory
// has a fast path, because channelsBetween is called for each tensor.
func (p *Pipe) channelsBetween(local, remote device.Device) []sizedChannel {
	if local == hostPair.local && remote == hostPair.remote {
		return p.hostChannels
	}
	return p.channelsByPair[devicePair{local, remote}]
}

func (p *Pipe) closeChannels(cause error) {
	for _, l := range p.channels {
		l.channel.Close(cause)
	}
}

// findChannel returns the channel of the largest tensors between a local and a remote device. If
// there is none the error matches ErrNoChannel and has the reasons.
func (p *Pipe) findChannel(local, remote device.Device) (*pipeChannel, error) {
	if all := p.channelsBetween(local, remote); all != nil {
		return all[0].channel, nil
	}
	var reasons []string
	for _, r := range p.plan.Refused {
		if r.Kind == CandidateChannel {
			reasons = append(reasons, r.String())
		}
	}
	reason := cmp.Or(strings.Join(reasons, "; "), "no channel serves them")
	return nil, fmt.Errorf("%w: %s here to %s there; %s", ErrNoChannel, local, remote, reason)
}

// checkSource returns an error that matches ErrNoChannel if no channel sends tensors from the local
// device source.
func (p *Pipe) checkSource(source device.Device) error {
	if source == hostPair.local && p.hostChannels != nil {
		return nil
	}
	if _, ok := p.sendDevices[source]; ok {
		return nil
	}
	_, err := p.findChannel(source, device.Device{})
	return err
}

// checkArrival returns an error that matches ErrNoChannel if no channel can deliver a tensor of the
// peer: to its target device or, if the sender left that open, to any local device.
func (p *Pipe) checkArrival(t *TensorDescriptor) error {
	if !t.TargetDevice.IsZero() {
		_, err := p.findChannel(t.TargetDevice, t.SourceDevice)
		return err
	}
	if _, ok := p.recvDevices[t.SourceDevice]; ok {
		return nil
	}
	_, err := p.findChannel(device.Device{}, t.SourceDevice)
	return err
}
