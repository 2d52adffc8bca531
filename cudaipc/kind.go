// Package cudaipc is the device kind "cuda", NVIDIA GPUs, and the channels that move tensors between
// them: directly between processes, within a process, and through host memory.
//
// A [Kind] uses a [driver.Driver], which is opened at run time, so that a program that imports this
// package also runs on machines without a GPU:
//
//	d, err := driver.Open("")       // a *driver.NotViableError without a driver
//	kind, err := cudaipc.New(d, cudaipc.Options{})
//	defer kind.Close()
//	stream, err := kind.NewStream(kind.Devices()[0])
//	b, err := kind.Alloc(stream.Device(), 1<<20, stream)
//
// No call waits for a GPU, except Synchronize, Close, Trim, LoadTensor, copies of more than 32 MiB to or from
// host memory that is not page-locked, and copies from host memory with a stream on which such a copy to
// host memory has not ended. The order of the work is that of streams.
package cudaipc

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// Name is the name of the kind.
const Name = "cuda"

// Options configure a Kind. The zero value uses all devices without a limit.
type Options struct {
	// MemoryLimit bounds the bytes of each device that the Kind holds, in use and kept for reuse. 0 is
	// no limit but that of the device.
	MemoryLimit int
}

// Kind is the device kind of the GPUs of a driver. It implements [device.Kind]. All methods may be
// called from any goroutine.
//
// The context of a device is the primary one, which the Kind shares with other libraries of the
// process. It is initialised when the device is first used.
type Kind struct {
	driver  driver.Driver
	gpus    []*gpu // by index
	closed  atomic.Bool
	imports importTable

	close    sync.Once
	closeErr error
}

var _ device.Kind = (*Kind)(nil)

// New returns a Kind of the devices of d, which the caller must close. It initialises no context. The
// error is that of the driver; a device that cannot be used is in no list, see [Kind.Unusable].
func New(d driver.Driver, o Options) (*Kind, error) {
	n, err := d.DeviceCount()
	if err != nil {
		return nil, err
	}
	k := &Kind{driver: d}
	for i := range n {
		g := newGPU(k, i, o)
		g.unusable = g.inspect()
		k.gpus = append(k.gpus, g)
	}
	return k, nil
}

// Name returns "cuda".
func (k *Kind) Name() string { return Name }

// Viable returns nil if the Kind has a usable device, and otherwise the reason.
func (k *Kind) Viable() error {
	for _, g := range k.gpus {
		if g.unusable == nil {
			return nil
		}
	}
	if len(k.gpus) == 0 {
		return &driver.NotViableError{Reason: "there is no device"}
	}
	return &driver.NotViableError{Reason: "no device can be used", Err: errors.Join(k.reasons()...)}
}

// Devices returns a new list of the usable devices, in the order of their indices.
func (k *Kind) Devices() []device.Device {
	var out []device.Device
	for _, g := range k.gpus {
		if g.unusable == nil {
			out = append(out, g.device)
		}
	}
	return out
}

// Unusable returns a new map with the devices of the driver that the Kind does not use, and the
// reason for each.
func (k *Kind) Unusable() map[device.Device]error {
	out := make(map[device.Device]error)
	for _, g := range k.gpus {
		if g.unusable != nil {
			out[g.device] = g.unusable
		}
	}
	return out
}

func (k *Kind) reasons() (out []error) {
	for _, g := range k.gpus {
		if g.unusable != nil {
			out = append(out, g.unusable)
		}
	}
	return out
}

// Driver returns the driver of the Kind.
func (k *Kind) Driver() driver.Driver { return k.driver }

// Close waits until the devices that the Kind has used have no work left, and frees their memory,
// streams and events. Nothing of the Kind may be in use, or be used later: close pipes and agents
// first. Later calls fail with an error that matches ErrClosed. A further Close returns the same
// error.
func (k *Kind) Close() error {
	k.close.Do(func() {
		var all []error
		for _, g := range k.gpus {
			all = append(all, g.drain())
		}
		k.closed.Store(true)
		for _, g := range k.gpus {
			all = append(all, g.close())
		}
		k.closeErr = errors.Join(all...)
	})
	return k.closeErr
}

// gpuOf returns the GPU of d, which must be usable. The error matches device.ErrDevice or ErrClosed.
func (k *Kind) gpuOf(d device.Device) (*gpu, error) {
	if d.Kind != Name || d.Index < 0 || d.Index >= len(k.gpus) {
		return nil, fmt.Errorf("cudaipc: there is no %v: %w", d, device.ErrDevice)
	}
	if g := k.gpus[d.Index]; g.unusable != nil {
		return nil, fmt.Errorf("%w: %w", device.ErrDevice, g.unusable)
	}
	if k.closed.Load() {
		return nil, ErrClosed
	}
	return k.gpus[d.Index], nil
}

// ErrClosed matches errors about the use of a closed Kind.
var ErrClosed = errors.New("cudaipc: the device kind is closed")
