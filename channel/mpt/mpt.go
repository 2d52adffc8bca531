// Package mpt is the channel that spreads a tensor over several connections, its
// lanes, so that one tensor is not bound to what one connection, and one
// processor, can do. It opens them itself, over transports of its own; the pipe's
// connection to the peer only says where. It moves host memory.
//
//	f := mpt.New(mpt.Lanes{Count: 4, Transport: uv.New()})
//
// The listening end listens while it expects lanes, and only then: on the first
// one the port is opened, and it is closed when the last has come. Each lane is
// announced by a number that a stranger cannot guess. A connection that brings
// none, or one that nobody expects, is closed, and how many may be silent, and
// for how long, is limited.
//
// # Compatible dialect
//
// This is the channel "mpt" of TensorPipe, which PyTorch registers as mpt_uv. All
// lanes are opened with the channel. Of a tensor of n bytes, lane i of N carries
// the bytes from n*i/N to n*(i+1)/N as one frame, which may be empty. There is no
// way to leave a tensor out, so aborting one closes the channel. Both ends must
// have the same number of lanes.
//
// # Native dialect
//
// The lanes are opened when there is a tensor of 1 MiB or more for the first
// time: at most as many as the factory has, and one for each processor of the end
// that has fewer, but 4 to 8. Until they are there, and if they cannot be had,
// because a firewall is in the way perhaps, tensors take the pipe's own way for
// host memory, as smaller ones always do. Where that is within one machine, as
// over shared memory, there are never any lanes, and the channel is not chosen if
// there is another. Lanes that nobody has needed for half a minute, or a whole one at
// the latest, are closed, and opened again in the same way.
//
// The receiver asks for a tensor in slices, of each lane for two at a time, so
// that a lane that is fast gets more of them. Nothing is sent that was not asked
// for, and it is asked for where memory waits. A tensor that is given up leaves
// the others alone. See docs/wire.md.
//
// # Security
//
// Where the pipe is TLS the lanes have to be as well, by transports that were
// made for it; a plain one is refused.
package mpt

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/probe"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Name is that of the channel in errors. Its name in the handshake contains that
// of its transport, by custom: UVName.
const (
	Name   = "mpt"
	UVName = "mpt_uv"
)

// maxLanes bounds the lanes of a channel, and what a peer may announce.
const maxLanes = 128

// Lanes are a number of lanes over one transport, which share a listener.
type Lanes struct {
	Count     int
	Transport transport.Transport

	// Addr is where to listen for them, as in "192.0.2.1:0". If it is empty that
	// is the address of this machine through which the pipe came, with any port;
	// a transport that has no such addresses needs one of its own.
	Addr string
}

// Factory makes channels; see [New].
type Factory struct {
	groups []Lanes
	viable func() error
	stripe int           // smallest slice of the native dialect
	late   time.Duration // lastLimit

	mu    sync.Mutex
	ports map[portKey]*port // those that are open
}

var (
	_ channel.Factory   = (*Factory)(nil)
	_ channel.Selective = (*Factory)(nil)
)

// New returns a factory of channels with these lanes, in this order. Several
// groups are for several networks.
func New(groups ...Lanes) *Factory {
	f := &Factory{groups: groups, stripe: minStripe, late: lastLimit, ports: make(map[portKey]*port)}
	f.viable = probe.Once(Name, f.check)
	return f
}

// Over returns a factory with as many lanes, all of them over t; with TLS, say,
// where the pipe's transport has it.
func (f *Factory) Over(t transport.Transport) *Factory {
	groups := slices.Clone(f.groups)
	for i := range groups {
		groups[i].Transport = t
	}
	return New(groups...)
}

// Suits implements [channel.Selective]: a pipe over a transport of another domain
// than the lanes, within one machine or one process, does better by itself.
func (f *Factory) Suits(t transport.Transport) error {
	for _, g := range f.groups {
		if own, domain := g.Transport.DomainDescriptor(), t.DomainDescriptor(); own != domain {
			return probe.NotSupported(Name, "the lanes are for pipes in the domain %q, not %q", own, domain)
		}
	}
	return nil
}

// check says why the channel cannot be used.
func (f *Factory) check() error {
	if n := f.lanes(); n < 1 || n > maxLanes {
		return probe.NotSupported(Name, "it has %d lanes, want 1..%d", n, maxLanes)
	}
	for _, g := range f.groups {
		if g.Count < 0 || g.Transport == nil {
			return probe.NotSupported(Name, "a group of %d lanes has the transport %v", g.Count, g.Transport)
		}
		if err := g.Transport.Viable(); err != nil {
			return err
		}
	}
	return nil
}

// lanes is the number of lanes.
func (f *Factory) lanes() (n int) {
	for _, g := range f.groups {
		n += g.Count
	}
	return n
}

// group is the one that lane i belongs to.
func (f *Factory) group(i int) int {
	k := 0
	for i >= f.groups[k].Count {
		i -= f.groups[k].Count
		k++
	}
	return k
}

// Viable is nil where all transports are.
func (f *Factory) Viable() error { return f.viable() }

// DeviceDescriptors names cpu:0, and tells the lanes: how many, and the domain of
// each.
func (f *Factory) DeviceDescriptors() map[device.Device]string {
	if f.Viable() != nil {
		return nil
	}
	text := []string{strconv.Itoa(f.lanes())}
	for _, g := range f.groups {
		for range g.Count {
			text = append(text, g.Transport.DomainDescriptor())
		}
	}
	return map[device.Device]string{device.CPU(): strings.Join(text, ":")}
}

// CanCommunicate reports whether both descriptors are equal, as TensorPipe
// demands it: the ends need equal numbers of lanes.
func (f *Factory) CanCommunicate(local, remote string) bool { return local == remote }

// Connections is 1: the lanes are agreed on over it.
func (f *Factory) Connections(bool) int { return connections }

const connections = 1

// New makes one end of a channel. It does not wait for the peer: the lanes are
// opened on the side.
func (f *Factory) New(_ context.Context, link channel.Link, role channel.Role) (channel.Channel, error) {
	err := channel.CheckLink(link, connections)
	if err == nil {
		if err = f.Viable(); err != nil {
			_ = channel.CloseLink(link)
		}
	}
	if err != nil {
		return nil, &channel.Error{Channel: Name, Peer: link.Peer, Err: err}
	}
	if link.Native {
		return newNativeEnd(f, link, role), nil
	}
	return newCompatEnd(f, link, role), nil
}
