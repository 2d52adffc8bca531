package future

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// Devices is where the tensors of a value may be beside the CPU, and how a future finds them. The future keeps it, and
// so do those derived from it.
type Devices struct {
	list    []device.Device
	streams StreamPool
	buffers func(ptr any) ([]device.Buffer, error)
}

// StreamPool has streams for callbacks. Its methods may be called concurrently.
type StreamPool interface {
	Get(device.Device) (device.Stream, error) // nil for a device without streams
	Put(...device.Stream)
}

// ErrDevices reports a future without Options.Devices, or a list of devices with the CPU.
var ErrDevices = errors.New("future: no devices")

// NewDevices returns Devices with these devices. Callbacks get streams from streams. buffers returns the memory of the
// tensors in the value to which ptr points. The error is a *CPUError if list has the CPU.
func NewDevices(list []device.Device, streams StreamPool, buffers func(ptr any) ([]device.Buffer, error)) (*Devices, error) {
	for _, d := range list {
		if d.Kind == device.KindCPU {
			return nil, &CPUError{d}
		}
	}
	return &Devices{slices.Clone(list), streams, buffers}, nil
}

// CPUError reports that the CPU is among the devices of a future. It matches ErrDevices.
type CPUError struct{ Device device.Device }

func (e *CPUError) Error() string {
	return fmt.Sprintf("%v: the devices of a future are devices beside the CPU, but %v is among them", ErrDevices, e.Device)
}

// Is makes the error match ErrDevices.
func (e *CPUError) Is(target error) bool { return target == ErrDevices }

// DeviceError reports that a value has tensors on other devices than its future has.
type DeviceError struct{ Found, Expected []device.Device }

func (e *DeviceError) Error() string {
	return fmt.Sprintf("future: the value has tensors on %v, and the devices of the future are %v", e.Found, e.Expected)
}

// SetFrom completes f with the value v, which is computed by work that is already enqueued: on the streams of the
// tensors in v, and on the streams that ctx has for their devices (device.WithStream). SetFrom finds the tensors itself;
// otherwise it does what SetOn does. f must have Options.Devices: without them the error matches ErrDevices, and f does
// not change.
//
// If the tensors cannot be found, or are on a device that is not among those of f, f fails with the error that SetFrom
// returns; in the second case that is a [*DeviceError].
func (f *Future[T]) SetFrom(ctx context.Context, v T) error {
	if f.devices == nil {
		return fmt.Errorf("%w: SetFrom needs Options.Devices", ErrDevices)
	}
	if f.IsDone() {
		return ErrDone // without recording events
	}
	events, err := f.devices.record(ctx, &v, nil)
	if done := f.complete(v, err, events); done != nil {
		return done
	}
	return err
}

// record records events on streams, on the streams of the tensors in the value to which ptr points, and on those of ctx for
// their devices. The error is that of d.buffers, a *DeviceError or a *StreamError.
func (d *Devices) record(ctx context.Context, ptr any, streams []device.Stream) ([]readyEvent, error) {
	all, err := d.buffers(ptr)
	if err != nil {
		return nil, err
	}
	streams = slices.Clone(streams)
	var foreign []device.Device
	for _, b := range all {
		on := b.Device()
		if !b.IsHost() {
			streams = append(streams, device.StreamFrom(ctx, on))
			if !slices.Contains(d.list, on) && !slices.Contains(foreign, on) {
				foreign = append(foreign, on)
			}
		}
		streams = append(streams, b.Stream())
	}
	if foreign != nil {
		return nil, &DeviceError{Found: foreign, Expected: slices.Clone(d.list)}
	}
	return record(streams)
}

// ThenOn does what [Then] does, for a function that enqueues work on the devices of f: ctx has a fresh stream for each of
// them, which waits for the work that computes the value of f. The result has the devices of f. A wait for it waits for the
// work on these streams, and on those of the tensors in its value, as far as they are found. If f has no Options.Devices,
// ctx has no streams and the result no devices.
func ThenOn[T, U any](f *Future[T], fn func(ctx context.Context, f *Future[T]) (U, error)) *Future[U] {
	switch {
	case f == nil:
		return Failed[U](ErrNilFuture)
	case fn == nil:
		return Failed[U](ErrNilCallback)
	}
	out := &Future[U]{onPanic: f.onPanic, activity: f.activity, devices: f.devices}
	f.enqueue(func() {
		d := f.devices
		if d == nil {
			derive(f, out, func(f *Future[T]) (U, error) { return fn(context.Background(), f) }, nil,
				func(*U) ([]readyEvent, error) { return nil, nil })
			return
		}
		fresh, err := d.fresh()
		defer func() { d.streams.Put(fresh...) }()
		if err != nil {
			_ = out.Fail(err) // has no effect if out was cancelled
			return
		}
		ctx := device.WithStreams(context.Background(), fresh...)
		derive(f, out, func(f *Future[T]) (U, error) { return fn(ctx, f) }, fresh,
			func(value *U) ([]readyEvent, error) {
				events, err := d.record(ctx, value, fresh)
				if foreign := (*DeviceError)(nil); err != nil && !errors.As(err, &foreign) {
					return record(fresh) // a value in which tensors cannot be found
				}
				return events, err
			})
	})
	return out
}

// fresh returns a stream for each device, as far as they have streams. After an error, which is a *PanicError if
// the pool panics, it returns those that it has got.
func (d *Devices) fresh() (all []device.Stream, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = newPanicError(p)
		}
	}()
	for _, on := range d.list {
		s, err := d.streams.Get(on)
		if err != nil {
			return all, fmt.Errorf("future: stream on %v: %w", on, err)
		}
		if s != nil {
			all = append(all, s)
		}
	}
	return all, nil
}
