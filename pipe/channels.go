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

// fits returns an error that names the channel if the channel cannot send the tensor memory src,
// and nil if it can. A channel that does not implement channel.Compatible is not asked: fits
// returns nil for it.
func (l *pipeChannel) fits(src device.Buffer) error {
	if l.compatible == nil {
		return nil
	}
	if err := l.compatible.Fits(src); err != nil {
		return fmt.Errorf("channel %s: %w", l.name, err)
	}
	return nil
}

// sizedChannel is a channel and a bound on the tensors that it carries: they have fewer than below
// bytes. If below is 0, there is no bound.
type sizedChannel struct {
	below   int
	channel *pipeChannel
}

// channelFor returns the channel that carries a tensor of n bytes between local, a device of this
// process, and remote, a device of the peer. It panics if no channel joins the two. Callers check
// that with findChannel first.
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

// openChannel opens the channel that e describes on the connections or the session in link, and
// appends it to p.channels. It fills in the fields of link that are the same for all channels. On
// failure it returns the error of the channel's factory, with the channel's name, and adds no
// channel. The channel owns the connections of link; on failure they are closed. The channel keeps
// broken and calls it at most once, with itself and its error, when it fails.
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

// assignChannels stores in p which channels join each pair of a local and a remote device, and
// which tensor sizes each of them serves. The parameter all holds these routes, whose channels must
// be open. assignChannels is called once, before messages are sent or received.
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

// channelsBetween returns the channels that join local, a device of this process, and remote, a
// device of the peer, each with the tensor sizes that it serves. The channel of the largest tensors
// comes first. The result is nil if no channel joins the two. It is p's own slice, which the caller
// must not change.
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

// findChannel returns the channel that carries the largest tensors between local, a device of this
// process, and remote, a device of the peer. If no channel joins the two, it returns nil and an
// error that matches ErrNoChannel and lists why channels were rejected when the pipe was opened.
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

// checkSource returns nil if a channel can send tensors from source, a device of this process, to
// some device of the peer, and otherwise an error that matches ErrNoChannel.
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

// checkArrival returns nil if a channel can deliver the peer's tensor t, and otherwise an error
// that matches ErrNoChannel. The channel must reach t.TargetDevice or, if the sender left the
// target to the receiver, any local device.
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
