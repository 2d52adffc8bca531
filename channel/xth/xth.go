// Package xth is the channel between two ends within one process: the receiver copies a tensor once,
// directly from the sender's memory into its own.
//
// On the first of two connections the sender announces each tensor by an address. On the second one the
// receiver replies with an empty frame after it has copied the tensor; the sender then calls done.
// Nothing is sent for empty tensors. These are the frames of TensorPipe's channel "xth". In the native
// dialect announcements and completions begin with the id of the transfer, so that tensors may be
// copied in any order, and revocations are announced too.
//
// An address that was received over a connection is never dereferenced. A sender describes each tensor
// in a table of this process, under the announced address and the endpoints of that connection. A peer
// that announces any other address, for example from another process, breaks the protocol. See
// routes.go.
//
// Aborting a transfer does not affect the others: the description is revoked, a running copy stops
// within a chunk, and in the compatible dialect the other end gets an error that matches
// [channel.ErrAborted].
package xth

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/probe"
	"github.com/tensorpipe-go/tensorpipe/internal/sysid"
)

// Name is the channel's name in TensorPipe's handshake.
const Name = "xth"

// connections is the number of connections: tensors are announced on the first, and completions return
// on the second.
const connections = 2

// Factory creates channels; see [New].
type Factory struct {
	// viable returns nil, or why the channel does not work in this process; determined at the first
	// call.
	viable func() error
}

var _ channel.Factory = Factory{}

// New returns a factory of channels. The zero Factory cannot be used. Viable tests the system at
// its first call and keeps the result.
func New() Factory {
	return Factory{viable: probe.Once(Name, func() error {
		_, err := sysid.Process()
		return err
	})}
}

// Viable returns nil if this process can be identified as TensorPipe requires. Otherwise the error
// matches [errors.ErrUnsupported], as on all systems but Linux. The system is tested at the first
// call only.
func (f Factory) Viable() error { return f.viable() }

// DeviceDescriptors returns a new map with the descriptor of cpu:0, or nil if the channel is not
// viable. The descriptor identifies the machine and this process.
func (f Factory) DeviceDescriptors() map[device.Device]string {
	process, err := sysid.Process()
	if err != nil {
		return nil
	}
	return map[device.Device]string{device.CPU(): process}
}

// CanCommunicate reports whether the descriptors are equal: both ends are in the same process. If a
// peer in another process copies a descriptor, the channel is opened, but its transfers fail.
func (f Factory) CanCommunicate(local, remote string) bool { return local == remote }

// Connections returns 2 for both dialects: tensors are announced on the first connection, and
// completions return on the second.
func (f Factory) Connections(bool) int { return connections }

// New returns this process's end of a channel, which owns the connections and the Host of link. It
// does not wait for the peer. It fails if link has the wrong number of connections or the channel
// is not viable. It has then closed the connections and the Host of link, and the error is a
// [*channel.Error].
func (f Factory) New(_ context.Context, link channel.Link, _ channel.Role) (channel.Channel, error) {
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
		return newNative(link), nil
	}
	return newEnd(link), nil
}
