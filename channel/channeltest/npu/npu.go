// Package npu shows how to add a new kind of device: a [device.Kind], here one of package delayed,
// and a channel, here this package. No other package needs to change.
//
// The channel moves tensors between these devices and the CPU, in any combination. It copies tensors of a device to
// host memory and sends them over a channel for host memory. It never
// waits for a stream. The copy out of the device is enqueued on the tensor's stream, and the
// staging buffer is valid on that stream, so that the host channel waits for it; the copy into the
// device is enqueued once the bytes have arrived.
package npu

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
)

// Name is the name of the device kind and of the channel.
const Name = "npu"

// NewKind returns a new device kind with two devices, whose name is Name. The caller must close it.
func NewKind() *delayed.Kind { return delayed.New(Name, 2) }

// New returns a factory of channels that move tensors on the devices of kind, through staging
// buffers in host memory and channels of host. Both ends must use host channels of the same type.
// The factory retains kind and host.
func New(kind device.Kind, host channel.Factory) channel.Factory {
	return factory{Factory: host, kind: kind}
}

// factory inherits Viable, CanCommunicate and Connections from the host channel's factory.
type factory struct {
	channel.Factory
	kind device.Kind
}

// DeviceDescriptors returns a new map with cpu:0 and all devices of f.kind, each with the descriptor that the
// host channel has for cpu:0. It returns nil if the host channel has none.
func (f factory) DeviceDescriptors() map[device.Device]string {
	host, ok := f.Factory.DeviceDescriptors()[device.CPU()]
	if !ok {
		return nil
	}
	out := map[device.Device]string{device.CPU(): host}
	for _, d := range f.kind.Devices() {
		out[d] = host
	}
	return out
}

func (f factory) New(ctx context.Context, link channel.Link, role channel.Role) (channel.Channel, error) {
	host, err := f.Factory.New(ctx, link, role)
	if err != nil {
		return nil, err
	}
	s := staging{Channel: host, kind: f.kind}
	if c, ok := host.(channel.Compatible); ok {
		return compatible{s, c}, nil
	}
	return s, nil
}

// compatible inherits the methods of [channel.Compatible] from the host channel too.
type compatible struct {
	staging
	channel.Compatible
}

// staging inherits Abort and Close from the host channel.
type staging struct {
	channel.Channel
	kind device.Kind
}

// Send copies src into a new staging buffer on src's stream and sends the buffer over the host
// channel. If the copy cannot be enqueued, it passes src itself to the host channel, which fails
// the transfer because it cannot address src, and calls done with the error of the copy. Host memory needs no copy.
func (s staging) Send(id uint64, src device.Buffer, done func(error)) {
	if src.IsHost() {
		s.Channel.Send(id, src, done)
		return
	}
	staging := device.Bytes(make([]byte, src.Len())).WithStream(src.Stream())
	if err := s.kind.Copy(staging, src); err != nil {
		s.Channel.Send(id, src, func(error) { done(err) })
		return
	}
	s.Channel.Send(id, staging, done)
}

// Recv receives the tensor over the host channel into a new staging buffer, then enqueues the copy
// to dst on dst's stream and calls done with the error of that, or nil. If the host channel fails,
// it calls done with that error. Host memory needs no copy.
func (s staging) Recv(id uint64, dst device.Buffer, done func(error)) {
	if dst.IsHost() {
		s.Channel.Recv(id, dst, done)
		return
	}
	staging := device.Bytes(make([]byte, dst.Len()))
	s.Channel.Recv(id, staging, func(err error) {
		if err == nil {
			err = s.kind.Copy(dst, staging)
		}
		done(err)
	})
}
