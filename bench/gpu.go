package bench

import (
	"errors"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// XTHGPUs is the name of the channel between GPUs within one process.
const XTHGPUs = "cuda_xth"

// GPUChannels returns a new slice with the names of the channels for GPUs that a Spec with a Device may
// name. Without a name a pipe chooses among the first two, which connect two processes.
func GPUChannels() []string { return []string{cudaipc.IPCName, cudaipc.BasicName, XTHGPUs} }

// onGPU reports whether the tensors of s are in memory of GPUs.
func (s Spec) onGPU() bool { return !s.Device.IsZero() }

// checkGPU returns an error that matches ErrSpec if s combines a GPU with something that only tensors
// in host memory have. s must have its defaults.
func (s Spec) checkGPU() error {
	for _, d := range []device.Device{s.Device, s.ServerDevice} {
		if s.onGPU() && (d.Kind != cudaipc.Name || d.Index < 0) {
			return specErrorf("device %v: want a GPU, such as %s:0", d, cudaipc.Name)
		}
	}
	switch {
	case !s.onGPU() && !s.ServerDevice.IsZero():
		return specErrorf("device %v of the server without one of the client", s.ServerDevice)
	case !s.onGPU():
		return nil
	case s.Buffers != BuffersDefault:
		return specErrorf("buffers %q: tensors are in memory of %v", s.Buffers, s.Device)
	case s.Compression != pipe.CompressionNone:
		return specErrorf("compression %s: tensors on GPUs are not compressed", s.Compression)
	}
	return nil
}

// checkHost returns an error that matches ErrSpec if the tensors of s are on GPUs, for measurements that
// have host memory only.
func (s Spec) checkHost() error {
	if s.onGPU() {
		return specErrorf("device %v: only Measure has tensors on GPUs", s.Device)
	}
	return nil
}

// open returns the options of a pipe.Context with that name for s and, if the tensors of s are on GPUs,
// the device kind of these. The kind is nil otherwise; the caller must pass it to closeGPUs once the
// context is closed. The error matches ErrSpec, or ErrPath if there is no such GPU.
func (s Spec) open(name string, from Catalog) (pipe.Options, *cudaipc.Kind, error) {
	if !s.onGPU() {
		opts, err := s.options(name, from)
		return opts, nil, err
	}
	host := s
	host.Channels = nil
	opts, err := host.options(name, from)
	if err != nil {
		return opts, nil, err
	}
	kind, err := openGPUs(s)
	if err != nil {
		return opts, nil, err
	}
	all := []pipe.ChannelEntry{
		{Name: cudaipc.IPCName, Priority: 300, Factory: cudaipc.NewIPC(kind)},
		{Name: cudaipc.BasicName, Priority: 0, Factory: cudaipc.NewBasic(kind, basic.New())},
		{Name: XTHGPUs, Priority: 400, Factory: xth.ForKind(XTHGPUs, kind)},
	}
	opts.Kinds = []device.Kind{kind}
	opts.Channels, err = pick("channel for GPUs", all, s.Channels, all[:2:2], func(e pipe.ChannelEntry) string { return e.Name })
	if err != nil {
		return opts, nil, errors.Join(err, kind.Close())
	}
	return opts, kind, nil
}

// openGPUs returns the device kind of the GPUs of this machine, which the caller must close. The error is a
// *PathError if the machine does not have the devices of s. It initialises no context.
func openGPUs(s Spec) (*cudaipc.Kind, error) {
	s = s.withDefaults()
	d, err := driver.Open("")
	if err != nil {
		return nil, &PathError{"device " + s.Device.String(), err}
	}
	kind, err := cudaipc.New(d, cudaipc.Options{})
	if err != nil {
		return nil, &PathError{"device " + s.Device.String(), err}
	}
	for _, of := range []device.Device{s.Device, s.ServerDevice} {
		if _, err := kind.Stats(of); err != nil {
			return nil, errors.Join(&PathError{"device " + of.String(), err}, kind.Close())
		}
	}
	return kind, nil
}

// closeGPUs closes kind, unless it is nil. It waits until the GPUs have no work left.
func closeGPUs(kind *cudaipc.Kind) error {
	if kind == nil {
		return nil
	}
	return kind.Close()
}

// handOvers returns the time from each of writes, before a message was written by the client, to the
// element of reads with the same index, at which the server's Read has returned. Both are in nanoseconds
// of the wall clock of this machine.
func handOvers(writes, reads []int64) []time.Duration {
	out := make([]time.Duration, 0, len(writes))
	for i := range min(len(writes), len(reads)) {
		out = append(out, time.Duration(reads[i]-writes[i]))
	}
	return out
}
