package cudaipc

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// Stream is a stream of a GPU. It implements [device.Stream]. It waits for streams and events of
// every Kind of its process, but not for those of other device kinds, for which the driver has no
// way.
//
// A Stream that becomes unreachable is used again. An error of the work on a GPU is one of its
// context: every later call on that device returns it.
type Stream struct {
	gpu        *gpu
	handle     driver.Stream
	deliveries deliveries
}

var _ device.Stream = (*Stream)(nil)

// NewStream returns a stream on d, which does not wait for the default stream. The error
// matches device.ErrDevice or ErrClosed, or is that of the driver.
func (k *Kind) NewStream(d device.Device) (device.Stream, error) {
	g, err := k.gpuOf(d)
	if err != nil {
		return nil, err
	}
	s, err := g.newStream()
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (g *gpu) newStream() (*Stream, error) {
	if err := g.enter(); err != nil {
		return nil, err
	}
	defer g.leave()
	handle, err := g.takeStream()
	if err != nil {
		return nil, err
	}
	s := &Stream{gpu: g, handle: handle}
	runtime.AddCleanup(s, g.putStream, handle)
	return s, nil
}

// Device returns the GPU of the stream.
func (s *Stream) Device() device.Device { return s.gpu.device }

// Handle returns the driver's stream, for work of the application. The caller must keep s reachable
// while it uses the handle.
func (s *Stream) Handle() driver.Stream { return s.handle }

// Record returns an event that completes after all work enqueued so far. It does not wait. The error
// matches ErrClosed, or is that of the driver.
func (s *Stream) Record() (device.Event, error) {
	if err := s.gpu.enter(); err != nil {
		return nil, err
	}
	defer s.gpu.leave()
	handle, err := s.gpu.takeEvent()
	if err != nil {
		return nil, err
	}
	if err := s.gpu.driver.Record(handle, s.handle); err != nil {
		s.gpu.putEvent(handle)
		return nil, err
	}
	e := &Event{gpu: s.gpu, handle: handle, deliveries: s.deliveries.unfinished()}
	e.cleanup = runtime.AddCleanup(e, s.gpu.putEvent, handle)
	runtime.KeepAlive(s)
	return e, nil
}

// Wait makes later work wait until ev, an event of a Kind, has completed. It does not wait itself.
// For another event the error matches device.ErrStream.
func (s *Stream) Wait(ev device.Event) error {
	e, ok := ev.(*Event)
	if !ok || e == nil {
		return fmt.Errorf("cudaipc: a stream of %v cannot wait for an event of another device kind: %w", s.Device(), device.ErrStream)
	}
	if err := s.gpu.enter(); err != nil {
		return err
	}
	defer s.gpu.leave()
	err := s.gpu.driver.Wait(s.handle, e.handle)
	s.deliveries.add(e.deliveries...)
	runtime.KeepAlive(e)
	runtime.KeepAlive(s)
	return err
}

// WaitFor makes later work wait for the present work of other, a stream of a Kind. It does not
// allocate. For another stream the error matches device.ErrStream.
func (s *Stream) WaitFor(other device.Stream) error {
	o, ok := other.(*Stream)
	if !ok || o == nil {
		return fmt.Errorf("cudaipc: a stream of %v cannot wait for one of another device kind: %w", s.Device(), device.ErrStream)
	}
	if s == o {
		return nil
	}
	if err := o.gpu.enter(); err != nil {
		return err
	}
	defer o.gpu.leave()
	err := o.gpu.order(s.handle, o.handle)
	s.deliveries.add(o.deliveries.unfinished()...)
	runtime.KeepAlive(o)
	runtime.KeepAlive(s)
	return err
}

// Synchronize blocks until all work enqueued so far has completed, and returns nil, the error of the
// device, or the error of ctx if that ends first.
func (s *Stream) Synchronize(ctx context.Context) error {
	e, err := s.Record()
	if err != nil {
		return err
	}
	defer e.Release()
	return e.Synchronize(ctx)
}

// Event is an event of a GPU. It implements [device.Event]. An Event that becomes unreachable is
// used again.
type Event struct {
	gpu        *gpu
	handle     driver.Event
	cleanup    runtime.Cleanup
	deliveries []*delivery // that belong to the work before the event
}

var _ device.Event = (*Event)(nil)

// Done reports whether the work before the event has completed, or will not because the device has
// failed. It does not wait. The error is that of the device.
func (e *Event) Done() (bool, error) {
	if err := e.gpu.enter(); err != nil {
		return true, err
	}
	defer e.gpu.leave()
	done, err := e.gpu.driver.EventDone(e.handle)
	runtime.KeepAlive(e)
	if !done && err == nil {
		return false, nil
	}
	for _, d := range e.deliveries {
		select {
		case <-d.done:
			err = cmp.Or(err, d.err)
		default:
			return err != nil, err
		}
	}
	return true, err
}

// Times between two queries of an event by a goroutine that waits for it.
const (
	firstQuery = 10 * time.Microsecond
	lastQuery  = time.Millisecond
)

// Synchronize blocks until the event completes, and returns nil, the error of the device, or the
// error of ctx if that ends first. It queries the event, at growing intervals of at most a
// millisecond, because the driver's own wait cannot be ended.
func (e *Event) Synchronize(ctx context.Context) error {
	interval := firstQuery
	var timer *time.Timer
	for {
		done, err := e.Done()
		if done || err != nil {
			return err
		}
		if timer == nil {
			timer = time.NewTimer(interval)
			defer timer.Stop()
		} else {
			timer.Reset(interval)
		}
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		interval = min(2*interval, lastQuery)
	}
}

// Release returns the event for reuse. It must not be used after that; streams that wait for it go
// on to do so.
func (e *Event) Release() {
	e.cleanup.Stop()
	runtime.KeepAlive(e) // otherwise the cleanup may be queued before Stop, and run too
	e.gpu.putEvent(e.handle)
}
