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

// New returns a factory of channels whose lanes are those of all groups, in this order. Several
// groups serve several networks. New does not check the groups; if they are not valid, Viable
// returns an error. The factory retains groups, which the caller must not change.
func New(groups ...Lanes) *Factory {
	f := &Factory{groups: groups, stripe: minStripe, lateTimeout: lateLaneTimeout, ports: make(map[portKey]*port)}
	f.viable = probe.Once(Name, f.check)
	return f
}

// Over implements [channel.Layered]. It returns a new factory with the same groups of lanes, except
// that all use transport t, for example one with TLS. f does not change.
func (f *Factory) Over(t transport.Transport) channel.Factory {
	groups := slices.Clone(f.groups)
	for i := range groups {
		groups[i].Transport = t
	}
	return New(groups...)
}

// Suits implements [channel.Layered]. It returns nil if the transports of all groups have the same
// domain descriptor as t, and otherwise an error that matches [transport.ErrNotSupported]: in a
// pipe within one machine or process, lanes over a network are no improvement. The groups must be
// valid.
func (f *Factory) Suits(t transport.Transport) error {
	for _, g := range f.groups {
		if own, domain := g.Transport.DomainDescriptor(), t.DomainDescriptor(); own != domain {
			return probe.NotSupported(Name, "the lanes are for pipes in the domain %q, not %q", own, domain)
		}
	}
	return nil
}

// check returns nil if the factory can be used, and otherwise the reason: the number of lanes is
// not 1 to maxLanes, a group has a negative number of lanes or no transport, or a transport is not
// viable.
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

// lanes returns the number of lanes of all groups together.
func (f *Factory) lanes() (n int) {
	for _, g := range f.groups {
		n += g.Count
	}
	return n
}

// group returns the index in f.groups of the group to which lane i belongs. i must be at least 0
// and less than the number of lanes.
func (f *Factory) group(i int) int {
	k := 0
	for i >= f.groups[k].Count {
		i -= f.groups[k].Count
		k++
	}
	return k
}

// Viable returns nil if the groups have 1 to 128 lanes in all, none of them a negative number, each
// group has a transport, and all transports are viable. Otherwise the error is the reason, and
// matches [transport.ErrNotSupported]. These conditions are checked at the first call only; later
// calls return the same result.
func (f *Factory) Viable() error { return f.viable() }

// DeviceDescriptors returns a new map with the descriptor of cpu:0, or nil if the channel is not
// viable. The descriptor consists of the number of lanes and the domain descriptor of each lane's
// transport.
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

// CanCommunicate reports whether the descriptors local and remote are equal: the two ends have the
// same number of lanes, with the same domains. TensorPipe requires this.
func (f *Factory) CanCommunicate(local, remote string) bool { return local == remote }

// Connections returns 1 for both dialects. The two ends negotiate over this connection how to open
// the lanes.
func (f *Factory) Connections(bool) int { return connections }

const connections = 1

// New returns this process's end of a channel, which owns the connections and the Host of link. It
// waits neither for the peer nor for lanes. It fails if link has the wrong number of connections or
// the factory is not viable. It has then closed the connections and the Host of link, and the error
// is a [*channel.Error].
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

// wrapUnopened returns the error for a lane that could not be opened because of err, which must not
// be nil. If ctx has ended the result is the cause of ctx; a ctx whose deadline has passed counts
// as ended. Otherwise the result matches channel.ErrUnopened, and wraps err, or io.ErrUnexpectedEOF
// if err matches io.EOF.
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

// protocolError returns an error that matches channel.ErrProtocol, because the peer has violated
// the protocol. format and args make its text as in fmt.Errorf.
func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{channel.ErrProtocol}, args...)...)
}

// wrapError returns err as a [*channel.Error] with the channel's name and peer. If err contains a
// *wire.Error or matches transport.ErrFrame, the result also matches channel.ErrProtocol. If the
// outermost [*channel.Error] in err is one of an mpt channel, whatever its peer, wrapError returns
// err unchanged. err must not be nil.
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
