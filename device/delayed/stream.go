package delayed

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// Stream runs its work in order, on a goroutine that exists while there is work. It implements
// [device.Stream].
//
// After the first work that fails, as on real devices, later work is skipped and events complete
// with the error of that work. Waiting for an event that failed counts as a failure too.
type Stream struct {
	kind   *Kind
	device device.Device

	// Guarded by kind.mu.
	tasks []func()
	busy  bool // a goroutine runs the tasks

	err error // of the first failed work; accessed by tasks only
}

// Device returns the device on which the stream was created.
func (s *Stream) Device() device.Device { return s.device }

// Record returns an event that completes after all work enqueued so far, with the error of the
// first failed work of the stream, or nil. It does not block. The error of Record matches
// [ErrClosed], after Close of the kind.
func (s *Stream) Record() (device.Event, error) {
	ev := &event{done: make(chan struct{})}
	if err := s.enqueue(func() { ev.complete(s.err) }); err != nil {
		return nil, err
	}
	return ev, nil
}

// Wait makes work that is enqueued on s later wait until ev has completed. If ev completes with an
// error, s fails, and the later work is skipped. Wait does not block. The error of Wait matches
// [ErrClosed], after Close of the kind.
func (s *Stream) Wait(ev device.Event) error {
	if own, ok := ev.(*event); ok {
		if err := own.usable(); err != nil {
			return err
		}
		return s.enqueue(func() { s.work(func() error { return own.wait(s.kind.ctx) }) })
	}
	return s.enqueue(func() { s.work(func() error { return ev.Synchronize(s.kind.ctx) }) })
}

// WaitFor makes work that is enqueued on s later wait for the present work of other. It does not block. The error is
// that of Record of other, or of Wait.
func (s *Stream) WaitFor(other device.Stream) error {
	if other == device.Stream(s) {
		return nil
	}
	ev, err := other.Record()
	if err != nil {
		return err
	}
	return s.Wait(ev)
}

// Synchronize blocks until all work enqueued so far has completed, and returns the error of the
// first failed work of the stream, or nil. If ctx ends first it returns the error of ctx. After
// Close of the kind the error matches [ErrClosed].
func (s *Stream) Synchronize(ctx context.Context) error {
	ev, err := s.Record()
	if err != nil {
		return err
	}
	return ev.Synchronize(ctx)
}

// Hold makes work that is enqueued on s later wait until release is called; earlier work still
// runs. It does not block. Further calls of release do nothing. Closing the kind ends the hold too.
func (s *Stream) Hold() (release func()) {
	released := make(chan struct{})
	// An error means that the kind is closed, and no work runs.
	_ = s.enqueue(func() {
		select {
		case <-released:
		case <-s.kind.ctx.Done():
		}
	})
	return sync.OnceFunc(func() { close(released) })
}

// Launch enqueues a call of kernel on s, with the memory of each of the buffers on, in this order.
// kernel may use the memory until it returns; an error from it fails the stream. All buffers must
// be of this kind and on the device of s. If one is valid on another stream, the caller must order
// the two streams. The error of Launch matches device.ErrMemory or device.ErrStream for a buffer
// that cannot be used, or [ErrClosed] after Close; nothing is enqueued then.
func (s *Stream) Launch(kernel func(mem ...[]byte) error, on ...device.Buffer) error {
	mem := make([][]byte, len(on))
	for i, b := range on {
		own, err := s.kind.memory(b)
		if err != nil {
			return err
		}
		if own == nil || b.Device() != s.device {
			return fmt.Errorf("delayed: kernel on %v with memory of %v: %w", s.device, b.Device(), device.ErrMemory)
		}
		mem[i] = own
	}
	return s.launch(func() error { return kernel(mem...) })
}

// launch enqueues f on s, to run after the delay that WithDelay has set. If f returns an error the
// stream fails. The error of launch matches ErrClosed, after Close of the kind.
func (s *Stream) launch(f func() error) error {
	return s.enqueue(func() {
		s.work(func() error {
			s.kind.delay()
			return f()
		})
	})
}

// work runs f, and s fails if f returns an error. If s has failed already, work does not run f. If
// the kind has been closed, work does not run f either, and s fails with an error that matches
// ErrClosed. If the kind is closed when f fails, such an error replaces that of f. Only tasks of s
// may call work.
func (s *Stream) work(f func() error) {
	if s.err == nil {
		s.err = s.kind.open()
	}
	if s.err != nil {
		return
	}
	if s.err = f(); s.err != nil && s.kind.open() != nil {
		s.err = s.kind.open()
	}
}

func (s *Stream) enqueue(task func()) error {
	s.kind.mu.Lock()
	defer s.kind.mu.Unlock()
	if s.kind.closed {
		return fmt.Errorf("delayed: stream on %v: %w", s.device, ErrClosed)
	}
	s.tasks = append(s.tasks, task)
	if !s.busy {
		s.busy = true
		s.kind.workers.Go(s.run)
	}
	return nil
}

func (s *Stream) run() {
	for task := s.next(); task != nil; task = s.next() {
		task()
	}
}

// next removes the oldest task of s and returns it. If there is none it returns nil and marks s as
// idle: the goroutine that called next must end, and enqueue starts another one with the next task.
func (s *Stream) next() func() {
	s.kind.mu.Lock()
	defer s.kind.mu.Unlock()
	if len(s.tasks) == 0 {
		s.busy = false
		return nil
	}
	task := s.tasks[0]
	s.tasks = s.tasks[1:]
	return task
}

// event implements [device.Event].
type event struct {
	done     chan struct{}
	err      error // valid after done is closed
	released atomic.Bool
}

// ErrReleased is the error of an event that is used after Release.
var ErrReleased = errors.New("the event was released")

// Release marks the event: its later use is an error that matches ErrReleased.
func (e *event) Release() { e.released.Store(true) }

func (e *event) usable() error {
	if e.released.Load() {
		return fmt.Errorf("delayed: %w", ErrReleased)
	}
	return nil
}

func (e *event) complete(err error) {
	e.err = err
	close(e.done)
}

func (e *event) Done() (bool, error) {
	if err := e.usable(); err != nil {
		return false, err
	}
	return e.isDone()
}

func (e *event) isDone() (bool, error) {
	select {
	case <-e.done:
		return true, e.err
	default:
		return false, nil
	}
}

func (e *event) Synchronize(ctx context.Context) error {
	if err := e.usable(); err != nil {
		return err
	}
	return e.wait(ctx)
}

// wait is Synchronize for an event that may have been released since.
func (e *event) wait(ctx context.Context) error {
	if done, err := e.isDone(); done {
		return err
	}
	select {
	case <-e.done:
		return e.err
	case <-ctx.Done():
		return ctx.Err()
	}
}
