// Package channel defines the contract between a pipe and the channels that move the bytes of tensors.
// A [Factory] is what an application registers; a [Channel] is one end of an open channel, within one
// pipe. The package channeltest has the conformance suite that every implementation passes.
package channel

import (
	"context"
	"log/slog"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Channel moves tensors between the two ends of a pipe, in both directions at once. A Send of one end
// matches the Recv of the other end that has the same id. Both ends know the length of the tensor from
// the descriptor of the message. Host memory may consist of several segments, in different ways at
// the two ends. How ids are assigned depends on the dialect of the pipe, see [Link].
//
// In the compatible dialect ids count up from 0, separately for each direction: the k-th Send matches
// the k-th Recv. In the native dialect an id is unique within the channel, including both directions,
// and ids come in any order and with gaps; Send and Recv may come in either order, and a Recv may come
// long before or after another with a lower id.
//
// The pipe calls Send sequentially, and Recv likewise. A Recv may come before the peer's Send, in both
// dialects. Abort and Close may be called concurrently at any time. The pipe handles empty tensors
// itself, but Send and Recv accept them: they send nothing, and complete without error while the
// channel has not ended.
//
// Each transfer calls done exactly once, whatever its outcome, and never from within Send, Recv or
// Abort, so that the caller may hold a lock that done takes. Until done is called the memory belongs to
// the channel. After that host memory may be reused; on a device with streams the work is enqueued on
// the buffer's stream, and whatever reuses the memory must be ordered after it on that stream. done
// must not block.
type Channel interface {
	// Send sends src to the peer. The channel reads the memory after the work that src's stream holds
	// at the time of the call has completed.
	Send(id uint64, src device.Buffer, done func(error))

	// Recv receives the peer's tensor into dst. The channel writes to the memory after the work that
	// dst's stream holds at the time of the call has completed. Work enqueued on dst's stream after
	// done sees the received bytes.
	Recv(id uint64, dst device.Buffer, done func(error))

	// Abort cancels the transfers with that id, in both directions, at this end. done is called with
	// cause as soon as the memory is not in use any more, without waiting for the peer. An id that is
	// unknown or completed is ignored. In Abort and Close a nil cause stands for ErrClosed.
	//
	// In the native dialect all other transfers continue. The pipe informs the peer, whose end is
	// aborted soon after; data that still arrives for the id is dropped. The pipe does the same for a
	// transfer that failed at one end: a channel need not inform its other end.
	//
	// In the compatible dialect a channel whose wire form cannot skip a transfer closes itself with
	// cause and calls Link.Broken.
	Abort(id uint64, cause error)

	// Close ends all transfers with cause, and closes the link. It returns the error of closing the
	// link, after every done has been called and all goroutines of the channel have ended. Transfers
	// that begin later fail with an error that matches cause. The caller must not hold a lock that done
	// takes. A further Close waits for the same and has no other effect.
	Close(cause error) error
}

// Factory makes channels of one type. All methods may be called concurrently.
type Factory interface {
	// Viable returns nil if the channel works in this process, and otherwise the reason, an error that
	// satisfies errors.Is(err, transport.ErrNotSupported). It tests the system at most once.
	Viable() error

	// DeviceDescriptors returns, for each local device that the channel serves, what a peer must know
	// to decide whether the two can communicate. A device that does not work is left out, see
	// [DeviceReporter]. The map is sent to the peer. It has at least one device
	// and no empty text, and is the same at each call; the caller may change it.
	DeviceDescriptors() map[device.Device]string

	// CanCommunicate reports whether devices with these descriptors can exchange tensors. It must not
	// trust the remote descriptor and must be symmetric, since both ends decide. It returns false for a
	// text that no channel of this kind sends.
	CanCommunicate(local, remote string) bool

	// Connections returns the number of connections that a channel needs from its pipe: transport
	// connections in the compatible dialect, of which there is at least one, and streams of one session
	// in the native one.
	Connections(native bool) int

	// New returns this end of a channel over link. ctx bounds the call only. The end owns the
	// connections and the Host of link. If New fails, it has closed them. It fails if link has not as many
	// connections as the channel needs, see [CheckLink].
	New(ctx context.Context, link Link, role Role) (Channel, error)
}

// Role distinguishes the two ends of a pipe.
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

// Link is what a pipe provides to a channel.
type Link struct {
	// Native is set if both ends are of this library and use the native dialect.
	Native bool

	// Host moves host memory between the two ends of this channel, over a connection that the pipe
	// opens when it is first needed. The channel chooses the ids; for ids other than those of its own
	// transfers it must ensure that the Send begins before the Recv. The channel must close Host. It
	// need not call Broken if Host fails, which the pipe detects itself. Host is nil in the compatible
	// dialect, and only there.
	Host Channel

	// Conns are the connections to the peer's end of the same channel, in the same order at both ends;
	// their number is that of Factory.Connections. Nothing has been read from or written to them.
	Conns []transport.Conn

	// First is the connection over which the pipe was opened, for a channel that opens further ones: it
	// provides addresses and, if it is a [transport.Identified], the identity of the peer. The channel
	// does not read, write or close it. First may be nil if all Conns are such connections too.
	First transport.Conn

	// Remote has the peer's device descriptors for this channel, which the channel must not change or
	// trust. It is nil if the peer is not known.
	Remote map[device.Device]string

	// Offer is the peer's offer for this channel if it was probed, see [Prober], and otherwise nil.
	Offer []byte

	// Checksum is set if data that the channel sends over connections of its own, in the native
	// dialect, must carry a CRC32C.
	Checksum bool

	// Arrived, if not nil, is called with the number of bytes that a Recv has received since the last
	// call, from any goroutine and repeatedly during a large transfer: the pipe reports progress with
	// it. It does not block or allocate. The pipe itself counts bytes that Host moves.
	Arrived func(bytes int)

	// Peer names the other end, for errors and logs.
	Peer string

	// Broken must be called once, from any goroutine and at any time but not from within Send, Recv or
	// Abort, when the channel can move no more tensors for a reason other than its own Close: the peer
	// has closed or failed, the peer broke the protocol, or an Abort required closing the channel. The
	// error matches io.EOF if the peer closed between two transfers, and ErrProtocol if it broke the
	// protocol. Transfers that begin later fail with an error that matches the same one. Transfers in
	// progress still complete through done, successfully if the peer had sent all their bytes. They may wait for Host; Close ends them all. Broken does not block, calls
	// nothing of the channel, and is never nil.
	Broken func(error)

	// Logger is never nil.
	Logger *slog.Logger
}

// Compatible is an optional interface of a Channel in the compatible dialect. That dialect cannot skip
// a tensor: each one that the peer has sent must be received, and one that cannot be sent closes the
// channel, and with it the pipe. A channel must implement Compatible if
//   - its wire form cannot represent every tensor,
//   - it serves devices other than the CPU. Without Discard a pipe cannot reject tensors for them,
//   - it writes to the memory of one transfer, or of several, at more than one place at a time. Without
//     Discard a pipe receives rejected tensors into scratch memory in which several pieces may overlap,
//     so that the channel would write to the same bytes concurrently, or
//   - it detects the end of the peer on the connection on which tensors arrive. A peer that fails may
//     have sent tensors that it did not announce. Without EndRecv the channel would not get past them,
//     since no Recv for them comes.
type Compatible interface {
	// Fits returns an error if src cannot be sent because of its size or the number of pieces it
	// consists of. The pipe checks all tensors of a message before it sends anything of it. Fits may
	// be called at any time and does not block.
	Fits(src device.Buffer) error

	// Discard receives and drops a tensor of n bytes that the application has rejected. It takes the
	// place of Recv and calls done likewise. It uses a bounded amount of host memory, whatever n is,
	// and allocates none on a device.
	Discard(id uint64, n int, done func(error))

	// EndRecv announces that Recv and Discard will not be called any more, because the peer has
	// announced its last transfer. Earlier calls continue. If a tensor arrives after them on the
	// connection on which the channel detects the end of the peer, the channel treats it as that end,
	// and calls Link.Broken with io.EOF. EndRecv may be called repeatedly, and after Close.
	EndRecv()
}

// Prober is an optional interface of a Factory. It tests whether the channel works between this process
// and the actual peer, for channels where equal device descriptors do not guarantee that. If both ends
// of a pipe implement it, they exchange offers while the pipe is being opened. A channel whose probe
// fails at either end is not chosen, and the error becomes the reason. If the error is a [DeviceErrors],
// the channel is only not chosen for those devices. If the peer sends no offer nothing is probed.
//
// Both methods may be called concurrently.
type Prober interface {
	// Offer returns the bytes that this process sends to one peer, at most MaxOffer; no two peers
	// receive the same. theirs is the offer that this peer has sent already, or nil. The caller does
	// not change the bytes, and keeps them reachable until the peer has probed the channel: the peer
	// may read this very memory.
	Offer(theirs []byte) []byte

	// Probe tests the channel with offer, the peer's offer, which it must not trust, and returns an
	// error if the channel does not work. It does not wait for the peer.
	//
	// shown is the offer that this end sent before it received the peer's, or nil. If shown is not nil,
	// Probe must reject an offer that does not respond to it: the peer may have copied the offer of
	// another process.
	Probe(offer, shown []byte) error
}

// MaxOffer is the maximum size of an Offer in bytes.
const MaxOffer = 256

// DeviceReporter is an optional interface of a Factory that serves devices one of which may fail while
// the others work.
type DeviceReporter interface {
	// Unusable returns the local devices that DeviceDescriptors leaves out because they do not work,
	// each with the reason. It does not include devices for which the channel is not made. The map is
	// the same at each call; the caller may change it.
	Unusable() map[device.Device]error
}

// Explainer is an optional interface of a Factory whose descriptors are not readable text.
type Explainer interface {
	// Obstacle returns why CanCommunicate returns false for two descriptors, and "" if it returns true.
	Obstacle(local, remote string) string
}

// Layered is an optional interface of a Factory whose channels open connections of their own, over a
// transport that the factory was made with.
type Layered interface {
	// Over returns a factory that differs from this one only in that its channels use t. The receiver
	// does not change. It lets a ready-made factory use the transport that an application has
	// configured, for example one with TLS.
	Over(t transport.Transport) Factory

	// Suits returns nil if the connections that the channel opens are an improvement in a pipe over t,
	// and otherwise an error with the reason why not. The listening end calls it once the transport is
	// chosen. After an error it skips the channel if another one serves the same devices and neither
	// the policy of its application nor the preference of the peer names this channel. It does not call
	// Suits if the peer requires the order of priorities, as C++ peers do.
	Suits(t transport.Transport) error
}
