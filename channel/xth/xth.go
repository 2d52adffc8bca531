// Package xth is the channel between two ends within one process: the receiver
// copies a tensor straight from the sender's memory into its own, once.
//
// On the wire, over the first of two connections, the sender announces each
// tensor by an address; over the second, in the other direction, an empty frame
// says that it has been copied, and that is when the sender's done is called.
// Empty tensors leave no trace. These are the frames of TensorPipe's channel
// "xth". In the native dialect announcements and completions begin with the id
// of the transfer, so that tensors may be copied in any order, and what was
// withdrawn is announced as well.
//
// No address that came over a connection is ever followed. A sender puts each
// tensor on offer within this process, under the address that it announces and
// for the other end of that very connection; a peer that announces anything
// else, from another process perhaps, has broken the protocol. See offers.go.
//
// Aborting a transfer does not disturb the others: memory on offer is
// withdrawn, a copy under way stops within a chunk, and in the compatible dialect
// the other end gets an error that matches [channel.ErrAborted].
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

// connections: tensors are announced on the first, completions come back on
// the second.
const connections = 2

// Factory makes channels; see [New].
type Factory struct {
	viable func() error
}

var _ channel.Factory = Factory{}

// New returns a factory.
func New() Factory {
	return Factory{viable: probe.Once(Name, func() error {
		_, err := sysid.Process()
		return err
	})}
}

// Viable says why not where the system does not tell processes apart as
// TensorPipe does: on anything but Linux.
func (f Factory) Viable() error { return f.viable() }

// DeviceDescriptors names cpu:0, and this process in its machine.
func (f Factory) DeviceDescriptors() map[device.Device]string {
	process, err := sysid.Process()
	if err != nil {
		return nil
	}
	return map[device.Device]string{device.CPU(): process}
}

// CanCommunicate reports whether both ends are the same process. A peer may
// pretend that; it will find nothing on offer.
func (f Factory) CanCommunicate(local, remote string) bool { return local == remote }

// Connections is 2.
func (f Factory) Connections(bool) int { return connections }

// New makes one end of a channel. It does not wait for the peer.
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
		return newNativeEnd(link), nil
	}
	return newEnd(link), nil
}
