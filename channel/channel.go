// Package channel is the seam between a pipe and the way tensor bytes move
// once both ends know about a tensor. A [Factory] is what an application
// registers; a [Channel] is its live end within one pipe. The package
// channeltest holds the conformance suite that every implementation passes.
package channel

import (
	"context"
	"log/slog"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Channel moves tensors between the two ends of a pipe, both ways at once. A
// Send of one end meets the Recv of the other that has the same id: both know
// the length from the message's descriptor. How ids run depends on the dialect
// of the pipe, see [Link].
//
// In the compatible dialect ids count up from 0, for each direction on its own:
// the k-th Send meets the k-th Recv. In the native dialect they are unique within
// the channel, both directions taken together, and otherwise in any order and
// with gaps; either end may come first, and a Recv may be posted long before or
// after another with a lower id.
//
// The pipe calls Send one at a time, and Recv likewise; Abort and Close may
// come from anywhere at any time. The pipe moves empty tensors itself, yet Send
// and Recv accept them, complete without error and put nothing on the wire.
//
// Each transfer calls done exactly once, whatever happens, and never from
// within Send, Recv or Abort, so that their caller may hold a lock that done
// takes. Until done the memory belongs to the channel. After done host
// memory may be reused; on a device with streams the work is enqueued on the
// buffer's stream and whatever reuses the memory must be ordered behind it on
// that stream. done must not block.
type Channel interface {
	// Send gives src to the peer. Its bytes are read when the work that src's
	// stream holds at the time of the call has completed.
	Send(id uint64, src device.Buffer, done func(error))

	// Recv takes the peer's tensor into dst. What dst's stream does with the
	// memory after done sees the peer's bytes; what it was told to do before
	// Recv happens first.
	Recv(id uint64, dst device.Buffer, done func(error))

	// Abort gives up the transfer with that id in both directions of this end;
	// its done gets cause once nobody touches the memory any more, which does
	// not wait for the peer. An id that is unknown or already done is ignored.
	// Here and in Close a nil cause stands for ErrClosed.
	//
	// In the native dialect all other transfers go on. The pipe tells the peer,
	// whose end is aborted too, soon after; what still arrives for the id until
	// then, or later, is thrown away. It does the same for a transfer that
	// failed at one end alone: a channel need not tell its other end.
	//
	// In the compatible dialect a channel whose wire form cannot skip a transfer
	// closes itself with cause, and says so to Link.Broken.
	Abort(id uint64, cause error)

	// Close ends all transfers with cause and releases the link. It returns
	// when every done has been called and nothing of the channel runs any
	// more; the caller must not hold a lock that done takes. Closing again
	// waits for the same and does nothing else.
	Close(cause error) error
}

// Factory makes channels of one type. All methods may be called concurrently.
type Factory interface {
	// Viable is nil where the channel works, or an error that says why not and
	// satisfies errors.Is(err, transport.ErrNotSupported). It probes at most
	// once.
	Viable() error

	// DeviceDescriptors says for each local device that the channel serves
	// what a peer must know to decide whether the two can communicate. The map
	// is sent to the peer.
	DeviceDescriptors() map[device.Device]string

	// CanCommunicate reports whether devices with these descriptors can
	// exchange tensors. It must not trust the remote text and must be
	// symmetric: both ends decide alike.
	CanCommunicate(local, remote string) bool

	// Connections is the number of connections that a channel needs from its
	// pipe: in the native dialect streams of one session.
	Connections(native bool) int

	// New makes this end's channel over link. The channel owns the link's
	// connections from now on, also when New fails. ctx bounds the call only.
	New(ctx context.Context, link Link, role Role) (Channel, error)
}

// Role tells the two ends of a pipe apart.
type Role int

const (
	// RoleConnect is the end that dialled.
	RoleConnect Role = iota
	// RoleListen is the end that accepted.
	RoleListen
)

func (r Role) String() string {
	if r == RoleConnect {
		return "connect"
	}
	return "listen"
}

// Link is what a pipe gives to a channel.
type Link struct {
	// Native: both ends are of this library, and speak its own dialect.
	Native bool

	// Host moves host memory between the two ends of this channel, over a
	// connection that the pipe opens when it is first needed. Its ids are the
	// channel's to choose; for others than those of its own transfers the
	// channel must see to it that the Send is begun before the Recv. The
	// channel must close it. That it broke the pipe knows: Broken need not say
	// it. Host is nil in the compatible dialect, and only there.
	Host Channel

	// Conns are the connections to the peer's end of the same channel, in the
	// order both ends agree on; as many as Factory.Connections says. Nothing
	// has been read from or written to them.
	Conns []transport.Conn

	// First is the connection over which the pipe was opened, for a channel
	// that opens further ones: its addresses, and what it knows of the peer if
	// it is a [transport.Secured]. The channel does not read from it, write to it
	// or close it. It may be nil where all Conns are such connections too.
	First transport.Conn

	// Offer is what the peer has shown of the channel where that was tried, see
	// [Prober]; nil where it was not.
	Offer []byte

	// Checksum: what the channel moves over connections of its own in the native
	// dialect is to carry a CRC32C.
	Checksum bool

	// Arrived is called with the number of bytes that a Recv has received since the
	// last call, from any goroutine and well before done where the tensor is large:
	// the pipe then reports that it moves. It does not block and allocates nothing.
	// It may be nil; bytes that Host moves are counted by the pipe.
	Arrived func(bytes int)

	// Peer names the other end, for errors and logs.
	Peer string

	// Broken must be called once, from any goroutine and at any time but not
	// from within Send, Recv or Abort, when the channel can move no more
	// tensors for a reason other than its own Close: the peer is gone, or broke
	// the protocol, or an Abort could not be had for less. The error matches
	// io.EOF where the peer closed between two transfers, and ErrProtocol where
	// it broke the protocol. Transfers under way get their error through done
	// as always, or arrive where the peer had sent all of them before it closed.
	// What they wait for may be Host; Close ends all. Broken does not block, calls
	// nothing of the channel, and is never nil.
	Broken func(error)

	// Logger is never nil.
	Logger *slog.Logger
}
