// Package basic is the channel that works between any two hosts: tensors in host memory are sent over
// one connection of the pipe's transport.
//
// In the native dialect the pipe moves host memory itself, and the channel returns Link.Host.
// Everything else in this package is for the compatible dialect.
//
// On the wire each tensor that is not empty is one raw frame; the k-th frame is the k-th such tensor.
// This is the channel "basic" of TensorPipe, which C++ peers implement. The wire form cannot skip a
// tensor, so aborting one closes the channel.
//
// Each end has one goroutine that writes and one that reads. The reader always reads from the
// connection, so that it detects the end of the peer even while nothing is being transferred.
package basic

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// Name is the channel's name in TensorPipe's handshake.
const Name = "basic"

// descriptor is the device descriptor of every peer: any two hosts can use the channel.
const descriptor = "any"

// Factory creates channels. The zero value is ready to use.
type Factory struct{}

var _ channel.Factory = Factory{}

// New returns a factory of channels. It equals the zero Factory.
func New() Factory { return Factory{} }

// Viable returns nil: the channel works in every process.
func (Factory) Viable() error { return nil }

// DeviceDescriptors returns a new map with one entry: the descriptor of cpu:0, the only device that
// the channel serves. The descriptor is the same in every process.
func (Factory) DeviceDescriptors() map[device.Device]string {
	return map[device.Device]string{device.CPU(): descriptor}
}

// CanCommunicate reports whether both descriptors are equal.
func (Factory) CanCommunicate(local, remote string) bool { return local == remote }

// Connections returns the number of connections that the channel needs: 0 if native is true, for
// the native dialect, and otherwise 1.
func (Factory) Connections(native bool) int {
	if native {
		return 0
	}
	return 1
}

// New returns this process's end of a channel over link. In the native dialect the end is
// link.Host. In the compatible dialect it is a new end, which owns the connection of link. New does
// not wait for the peer. It fails only if link has the wrong number of connections. It has then
// closed the connections and the Host of link, and the error is a [*channel.Error].
func (f Factory) New(_ context.Context, link channel.Link, _ channel.Role) (channel.Channel, error) {
	if err := channel.CheckLink(link, f.Connections(link.Native)); err != nil {
		return nil, &channel.Error{Channel: Name, Peer: link.Peer, Err: err}
	}
	if link.Native {
		return link.Host, nil
	}
	return newEnd(link), nil
}
