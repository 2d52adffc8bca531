// Package mpt is the channel that divides a tensor among several connections, its lanes, so that the
// throughput of one tensor is not limited by one connection and one processor. It opens the lanes
// itself, over transports of its own; the pipe's connection only carries their addresses. It moves host
// memory.
//
//	f := mpt.New(mpt.Lanes{Count: 4, Transport: uv.New()})
//
// The listening end listens only while it expects lanes: it opens the port for the first one, and
// closes it after the last has connected. Each lane begins with an announced random number, which other
// processes cannot guess. A connection with an unknown number is closed, and the number and duration of
// connections that have not sent one are limited.
//
// # Compatible dialect
//
// This is the channel "mpt" of TensorPipe, which PyTorch registers as mpt_uv. All lanes are opened with
// the channel. Of a tensor of n bytes, lane i of N carries the bytes from n*i/N to n*(i+1)/N as one
// frame, which may be empty. The wire form cannot skip a tensor, so aborting one closes the channel.
// Both ends must have the same number of lanes.
//
// # Native dialect
//
// The lanes are opened for the first tensor of 1 MiB or more: one for each processor of the end that
// has fewer, but 4 to 8, and at most as many as the factory has. While there are no lanes, and if they
// cannot be opened, for example because of a firewall, tensors are sent over the pipe's bulk
// connection, as smaller ones always are. For pipes within one machine, as over shared memory, lanes
// are never opened, and the channel is not chosen if there is another. Lanes that have been idle for
// half a minute, or a whole one at the latest, are closed; they are opened again when needed.
//
// The receiver requests a tensor in slices, two at a time from each lane, so that fast lanes carry
// more. The sender sends only what was requested, and the receiver requests only what it has memory
// for. An aborted tensor does not affect the others. See docs/wire.md.
//
// # Security
//
// If the pipe uses TLS its lanes must too, over transports with TLS; a lane without it is rejected.
package mpt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/probe"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Name is the channel's name in errors. Its name in the handshake includes the name of its transport,
// as UVName does.
const (
	Name   = "mpt"
	UVName = "mpt_uv"
)

// maxLanes bounds the lanes of a channel, and the number that a peer may announce.
const maxLanes = 128

// Lanes describes a group of lanes over one transport, which share a listener.
type Lanes struct {
	Count     int
	Transport transport.Transport

	// Addr is the address to listen at, such as "192.0.2.1:0". If it is empty that is the local address
	// of the pipe's connection, with any port. A transport whose addresses have another form requires
	// Addr.
	Addr string
}

// Factory creates channels, and holds the listeners that they share; see [New].
type Factory struct {
	groups      []Lanes
	viable      func() error
	stripe      int           // smallest slice of the native dialect in bytes
	lateTimeout time.Duration // lateLaneTimeout, or shorter in tests

	mu    sync.Mutex
	ports map[portKey]*port // open ports
}

var (
	_ channel.Factory = (*Factory)(nil)
	_ channel.Layered = (*Factory)(nil)
)

// New returns a factory of channels with these groups of lanes, in this order. Several groups serve
// several networks. Invalid groups are reported by Viable. The factory retains groups.
func New(groups ...Lanes) *Factory {
	f := &Factory{groups: groups, stripe: minStripe, lateTimeout: lateLaneTimeout, ports: make(map[portKey]*port)}
	f.viable = probe.Once(Name, f.check)
	return f
}

// Over implements [channel.Layered]: it returns a factory with the same numbers of lanes, all over t, for
// example one with TLS for pipes with TLS.
func (f *Factory) Over(t transport.Transport) channel.Factory {
	groups := slices.Clone(f.groups)
	for i := range groups {
		groups[i].Transport = t
	}
	return New(groups...)
}

// Suits implements [channel.Layered]. It returns an error if t has another domain than the lanes: in
// a pipe within one machine or process the channel is no improvement.
func (f *Factory) Suits(t transport.Transport) error {
	for _, g := range f.groups {
		if own, domain := g.Transport.DomainDescriptor(), t.DomainDescriptor(); own != domain {
			return probe.NotSupported(Name, "the lanes are for pipes in the domain %q, not %q", own, domain)
		}
	}
	return nil
}

// check returns why the channel cannot be used, or nil: a wrong number of lanes, a group without a
// transport, or a transport that is not viable.
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

// lanes returns the total number of lanes.
func (f *Factory) lanes() (n int) {
	for _, g := range f.groups {
		n += g.Count
	}
	return n
}

// group returns the index of the group to which lane i belongs. i must be less than the number of
// lanes.
func (f *Factory) group(i int) int {
	k := 0
	for i >= f.groups[k].Count {
		i -= f.groups[k].Count
		k++
	}
	return k
}

// Viable returns nil if the groups have 1 to 128 lanes in all, and all transports are viable. Otherwise
// the error is the reason why not. The conditions are checked at the first call only.
func (f *Factory) Viable() error { return f.viable() }

// DeviceDescriptors returns the descriptor of cpu:0, which is the number of lanes and the domain of
// each, or nil if the channel is not viable.
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

// CanCommunicate reports whether the descriptors are equal, as TensorPipe requires: the ends need the
// same number of lanes.
func (f *Factory) CanCommunicate(local, remote string) bool { return local == remote }

// Connections returns 1, the connection over which the lanes are negotiated.
func (f *Factory) Connections(bool) int { return connections }

const connections = 1

// New returns this end of a channel. It does not wait for the peer; the lanes are opened in the
// background. The end owns the connections of link. If New fails, it has closed them, and the error is
// a [*channel.Error].
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

var (
	// ErrLate matches the error of a channel whose lanes were not open in time: the peer is blocked, or
	// a firewall drops connections to ports other than the pipe's. It matches [channel.ErrUnopened], as
	// the errors of all lanes that could not be opened do.
	ErrLate = fmt.Errorf("%w: lanes were not open in time", channel.ErrUnopened)

	// ErrPlain matches the error of a channel whose lanes have no TLS, in a pipe with TLS. Give the
	// channel a transport with TLS.
	ErrPlain = errors.New("lane without TLS in a pipe with TLS")
)

// Failures that the other end of the native dialect has reported.
var (
	errNotListening = fmt.Errorf("%w: the peer could not listen for lanes", channel.ErrUnopened)
	errNotDialled   = fmt.Errorf("%w: the peer could not dial the lanes", channel.ErrUnopened)
)

// errBusy is the error of a transfer whose id is in use.
var errBusy = errors.New("a transfer with this id is under way")

// wrapUnopened returns the error for a lane that could not be opened because of err: the cause of ctx
// if ctx has ended, and otherwise err, made to match channel.ErrUnopened. io.EOF becomes
// io.ErrUnexpectedEOF.
func wrapUnopened(ctx context.Context, err error) error {
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		<-ctx.Done() // a transport may return before ctx is done
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, io.EOF) { // io.EOF would mean an orderly end of the channel
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: %w", channel.ErrUnopened, err)
}

// protocolError returns an error about a violation of the protocol by the peer. It matches
// channel.ErrProtocol.
func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{channel.ErrProtocol}, args...)...)
}

// wrapError returns err as a [*channel.Error] with the channel's name and the peer, unless it is one
// already. An invalid frame or message also matches channel.ErrProtocol.
func wrapError(peer string, err error) error {
	if named, ok := errors.AsType[*channel.Error](err); ok && named.Channel == Name {
		return err
	}
	_, bad := errors.AsType[*wire.Error](err)
	if bad || errors.Is(err, transport.ErrFrame) {
		err = fmt.Errorf("%w: %w", channel.ErrProtocol, err)
	}
	return &channel.Error{Channel: Name, Peer: peer, Err: err}
}
