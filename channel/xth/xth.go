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
//
// [ForKind] makes the same channel for the memory of a device kind with streams: the receiver enqueues
// the copy instead, and neither end waits for it. See streams.go.
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

// Factory creates channels; see [New] and [ForKind].
type Factory struct {
	name string
	kind device.Kind // nil for host memory

	// viable returns nil, or why the channel does not work in this process; determined at the first
	// call.
	viable func() error
}

var (
	_ channel.Factory        = Factory{}
	_ channel.DeviceReporter = Factory{}
)

// New returns a factory of channels. The zero Factory cannot be used. Viable tests the system at
// its first call and keeps the result.
func New() Factory {
	return Factory{name: Name, viable: probe.Once(Name, func() error {
		_, err := sysid.Process()
		return err
	})}
}

// ForKind returns a factory of channels for the memory of kind instead of host memory, between any
// two of its devices, under the given name; TensorPipe's name for the kind "cuda" is "cuda_xth". A
// copy is enqueued on the target's stream and runs after the work that the source's stream holds at
// the time of Send; the source's stream waits for it. The host waits for no stream. Memory must be
// valid on a stream: a transfer of other memory fails with an error that matches device.ErrMemory or
// device.ErrStream. The factory retains kind.
func ForKind(name string, kind device.Kind) Factory {
	return Factory{name: name, kind: kind, viable: probe.Once(name, func() error {
		if _, err := sysid.Process(); err != nil {
			return err
		}
		return kind.Viable()
	})}
}

// Viable returns nil if this process can be identified as TensorPipe requires, and the device kind,
// if there is one, can be used. Otherwise the error matches [errors.ErrUnsupported], as on all
// systems but Linux. The system is tested at the first call only.
func (f Factory) Viable() error { return f.viable() }

// DeviceDescriptors returns a new map with the descriptor of cpu:0, or of each device of the kind, or
// nil if the channel is not viable. The descriptor identifies the machine, this process and the kind,
// unless that is cpu.
func (f Factory) DeviceDescriptors() map[device.Device]string {
	process, err := sysid.Process()
	if err != nil {
		return nil
	}
	if f.kind == nil {
		return map[device.Device]string{device.CPU(): process}
	}
	out := make(map[device.Device]string)
	for _, d := range f.kind.Devices() {
		out[d] = process + "_" + f.kind.Name()
	}
	return out
}

// Unusable implements [channel.DeviceReporter], for a device kind with a method of that name and type.
func (f Factory) Unusable() map[device.Device]error {
	if k, ok := f.kind.(interface {
		Unusable() map[device.Device]error
	}); ok {
		return k.Unusable()
	}
	return nil
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
		return nil, &channel.Error{Channel: f.name, Peer: link.Peer, Err: err}
	}
	if link.Native {
		return newNative(link, f), nil
	}
	return newEnd(link, f), nil
}
