// Package npu shows what it takes to teach the module a new kind of device: a
// [device.Kind], here one of package delayed, and a channel, here this package.
// Nothing else knows of it, and nothing else had to change.
//
// The channel passes tensors through host memory and hands them to a channel
// that serves the host. It never waits for a stream: the copy out of the device
// goes on the tensor's own stream, and the staging memory is valid on that
// stream, so the channel below waits for exactly the right moment; the copy
// into the device is enqueued when the bytes are there.
package npu

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
)

// Name of the kind and of the channel.
const Name = "npu"

// NewKind returns the device kind, with two devices. The caller closes it.
func NewKind() *delayed.Kind { return delayed.New(Name, 2) }

// New returns a factory of channels for tensors on devices of kind, which
// travel over channels that host makes. Peers need a host channel of the same
// type below theirs.
func New(kind device.Kind, host channel.Factory) channel.Factory {
	return factory{Factory: host, kind: kind}
}

// factory takes viability, the comparison of descriptors and the number of
// connections from the channel below.
type factory struct {
	channel.Factory
	kind device.Kind
}

// DeviceDescriptors says of each device what the channel below says of the
// host.
func (f factory) DeviceDescriptors() map[device.Device]string {
	below, ok := f.Factory.DeviceDescriptors()[device.CPU()]
	if !ok {
		return nil
	}
	out := make(map[device.Device]string)
	for _, d := range f.kind.Devices() {
		out[d] = below
	}
	return out
}

func (f factory) New(ctx context.Context, link channel.Link, role channel.Role) (channel.Channel, error) {
	below, err := f.Factory.New(ctx, link, role)
	if err != nil {
		return nil, err
	}
	return staging{Channel: below, kind: f.kind}, nil
}

// staging takes Abort and Close from the channel below.
type staging struct {
	channel.Channel
	kind device.Kind
}

// EndRecv implements [channel.Ender] where the channel below does.
func (s staging) EndRecv() {
	if e, ok := s.Channel.(channel.Ender); ok {
		e.EndRecv()
	}
}

// Send copies src to the host on its stream. Where that is not possible the
// channel below gets src itself, which it cannot address, and so gives up the
// transfer in its own way.
func (s staging) Send(id uint64, src device.Buffer, done func(error)) {
	host := device.Bytes(make([]byte, src.Len())).WithStream(src.Stream())
	if err := s.kind.Copy(host, src); err != nil {
		s.Channel.Send(id, src, func(error) { done(err) })
		return
	}
	s.Channel.Send(id, host, done)
}

// Recv lets the bytes arrive in the host and then enqueues the copy to dst,
// behind all that its stream was told before.
func (s staging) Recv(id uint64, dst device.Buffer, done func(error)) {
	host := device.Bytes(make([]byte, dst.Len()))
	s.Channel.Recv(id, host, func(err error) {
		if err == nil {
			err = s.kind.Copy(dst, host)
		}
		done(err)
	})
}
