package cudaipc

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/nop"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// BasicName is the name of the channel of NewBasic in TensorPipe's handshake.
const BasicName = "cuda_basic"

// Sizes in bytes of the channel "cuda_basic".
const (
	ringSize    = 32 << 20 // page-locked memory of a GPU in one direction, for all channels
	nativeChunk = 4 << 20  // divides ringSize
	compatChunk = 1 << 20  // TensorPipe's
)

// NewBasic returns a factory of the channel "cuda_basic": it moves tensors between the GPUs of kind, and
// between them and host memory, through page-locked host memory and a channel of host for host memory.
// It works between any two hosts. Both ends must use host channels of the same type.
//
// Tensors are moved in chunks. A chunk occupies page-locked memory only after the work that the
// tensor's stream held at the time of Send or Recv has completed, and no longer than its copy and its
// transfer last. The copies run on streams of the factory, one for each GPU and direction. All channels
// of the factory share 32 MiB of page-locked memory for each GPU and direction; beyond that each channel
// may use one chunk, so that it does not depend on the peers of others. No call waits for a GPU.
//
// Two devices of which both are cpu:0 cannot communicate, as with TensorPipe, because host alone serves
// them better. A channel that is opened nevertheless moves host memory too.
//
// In the compatible dialect the frames are those of TensorPipe: the connections of host come first, and
// the last one announces each chunk of 1 MiB by an empty frame. The factory retains kind and host.
func NewBasic(kind *Kind, host channel.Factory) channel.Factory {
	f := &basicFactory{kind: kind, host: host}
	for _, g := range kind.gpus {
		f.out = append(f.out, &ring{gpu: g})
		f.in = append(f.in, &ring{gpu: g})
	}
	return f
}

// basicFactory is the factory of NewBasic. out and in have the rings of each GPU, by its index, for the
// copies out of and into its memory.
type basicFactory struct {
	kind    *Kind
	host    channel.Factory
	out, in []*ring
}

var (
	_ channel.Factory        = (*basicFactory)(nil)
	_ channel.DeviceReporter = (*basicFactory)(nil)
)

// Viable returns nil if the device kind and the host channel can be used, and otherwise the reason.
func (f *basicFactory) Viable() error { return errors.Join(f.kind.Viable(), f.host.Viable()) }

// Unusable implements [channel.DeviceReporter].
func (f *basicFactory) Unusable() map[device.Device]error { return f.kind.Unusable() }

// DeviceDescriptors returns a new map with cpu:0 and all usable GPUs. Each descriptor has the device
// kind and the host channel's descriptor of cpu:0. The map is nil if that channel has none.
func (f *basicFactory) DeviceDescriptors() map[device.Device]string {
	host, ok := f.host.DeviceDescriptors()[device.CPU()]
	if !ok {
		return nil
	}
	out := make(map[device.Device]string)
	for _, d := range append(f.kind.Devices(), device.CPU()) {
		text := nop.AppendStructHeader(nil, 2)
		text = nop.AppendString(text, d.Kind)
		out[d] = string(nop.AppendString(text, host))
	}
	return out
}

// CanCommunicate reports whether the host channels can communicate and at least one of the devices is
// a GPU.
func (f *basicFactory) CanCommunicate(local, remote string) bool {
	localKind, localHost, err := decodeBasicDescriptor(local)
	if err != nil {
		return false
	}
	remoteKind, remoteHost, err := decodeBasicDescriptor(remote)
	if err != nil || localKind == device.KindCPU && remoteKind == device.KindCPU {
		return false
	}
	return f.host.CanCommunicate(localHost, remoteHost)
}

// decodeBasicDescriptor returns the device kind and the host channel's descriptor of a device
// descriptor.
func decodeBasicDescriptor(text string) (kind, host string, err error) {
	d := nop.NewDecoder([]byte(text))
	d.Struct(2)
	kind, host = string(d.Bytes()), string(d.Bytes())
	if kind != device.KindCPU && kind != Name {
		d.Failf("device kind %q", kind)
	}
	return kind, host, d.Finish()
}

// Connections returns the number of connections of the host channel and one more.
func (f *basicFactory) Connections(native bool) int { return f.host.Connections(native) + 1 }

// New returns this process's end of a channel over link. It does not wait for the peer, and initialises
// no GPU. The error is a [*channel.Error]; link is closed then.
func (f *basicFactory) New(ctx context.Context, link channel.Link, role channel.Role) (channel.Channel, error) {
	wrap := func(err error) error { return &channel.Error{Channel: BasicName, Peer: link.Peer, Err: err} }
	if err := channel.CheckLink(link, f.Connections(link.Native)); err != nil {
		return nil, wrap(err)
	}
	last := len(link.Conns) - 1
	e := newBasicEnd(f, link, role)
	hostLink := link
	hostLink.Conns = link.Conns[:last:last]
	hostLink.Broken = e.hostBroken
	host, err := f.host.New(ctx, hostLink, role)
	if err != nil {
		_ = link.Conns[last].Close()
		return nil, wrap(err)
	}
	e.start(host)
	return e, nil
}

// forget removes e from all rings, which do not wake it later.
func (f *basicFactory) forget(e *basicEnd) {
	for _, r := range slices.Concat(f.in, f.out) {
		r.forget(e)
	}
}

// wrapBasicError returns err as a [*channel.Error]. If it matches transport.ErrFrame, the result also
// matches channel.ErrProtocol.
func wrapBasicError(peer string, err error) error {
	if errors.Is(err, transport.ErrFrame) {
		err = fmt.Errorf("%w: %w", channel.ErrProtocol, err)
	}
	return &channel.Error{Channel: BasicName, Peer: peer, Err: err}
}
