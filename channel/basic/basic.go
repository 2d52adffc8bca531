// Package basic is the channel that works everywhere: tensors in host memory
// travel over one connection of the pipe's transport.
//
// In the native dialect the pipe moves host memory by itself, and the channel
// just says so. The rest is about the compatible dialect.
//
// On the wire each tensor that is not empty is one raw frame; the k-th frame is
// the k-th such tensor. This is the channel "basic" of TensorPipe, and peers in
// C++ understand it. There is no way to leave a tensor out, so aborting one
// closes the channel.
//
// Each end has one goroutine that writes and one that reads. The reader is
// always at the connection, so a peer that goes away is noticed while nothing
// is being transferred.
package basic

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// Name is the channel's name in TensorPipe's handshake.
const Name = "basic"

// descriptor is what every peer says: any two hosts can use the channel.
const descriptor = "any"

// Factory makes channels. The zero value is ready to use.
type Factory struct{}

var _ channel.Factory = Factory{}

// New returns a factory.
func New() Factory { return Factory{} }

// Viable is always nil.
func (Factory) Viable() error { return nil }

// DeviceDescriptors names cpu:0.
func (Factory) DeviceDescriptors() map[device.Device]string {
	return map[device.Device]string{device.CPU(): descriptor}
}

// CanCommunicate reports whether both descriptors are equal.
func (Factory) CanCommunicate(local, remote string) bool { return local == remote }

// Connections is 1 in the compatible dialect. In the native one the pipe itself
// moves host memory.
func (Factory) Connections(native bool) int {
	if native {
		return 0
	}
	return 1
}

// New makes one end of a channel. It does not wait for the peer.
func (f Factory) New(_ context.Context, link channel.Link, _ channel.Role) (channel.Channel, error) {
	if err := channel.CheckLink(link, f.Connections(link.Native)); err != nil {
		return nil, &channel.Error{Channel: Name, Peer: link.Peer, Err: err}
	}
	if link.Native {
		return link.Host, nil
	}
	return newEnd(link), nil
}
