package delayed

import (
	"context"
	"fmt"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// Stream runs its work in order, on a goroutine that exists while there is work. It implements
// [device.Stream].
//
// After the first work that fails, as on real devices, later work is skipped and events complete with
// the error of that work. Waiting for an event that failed counts as a failure too.
type Stream struct {
	kind   *Kind
	device device.Device

	// Guarded by kind.mu.
	tasks []func()
	busy  bool // a goroutine runs the tasks

	err error // of the first failed work; accessed by tasks only
}

// Device returns the device passed to NewStream.
func (s *Stream) Device() device.Device { return s.device }

// Record returns an event that completes after all work enqueued so far. The error matches
// [ErrClosed].
func (s *Stream) Record() (device.Event, error) {
	ev := &event{done: make(chan struct{})}
	if err := s.enqueue(func() { ev.complete(s.err) }); err != nil {
		return nil, err
	}
	return ev, nil
}

// Wait delays work enqueued later until ev has completed; if ev fails the stream fails too. It does
// not block. The error matches [ErrClosed].
func (s *Stream) Wait(ev device.Event) error {
	return s.enqueue(func() { s.work(func() error { return ev.Synchronize(s.kind.ctx) }) })
}

// Synchronize blocks until all work enqueued so far has completed, and returns its error, or that of
// ctx if ctx ends first.
func (s *Stream) Synchronize(ctx context.Context) error {
	ev, err := s.Record()
	if err != nil {
		return err
	}
	return ev.Synchronize(ctx)
}

// Hold stops the stream at this position until release is called: work enqueued earlier runs, and
// later work waits. Calling release again does nothing. Closing the kind ends the hold too.
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

// Launch enqueues a kernel, which gets the memory of the buffers on, in this order, and may use it
// until it returns. All buffers must be of this kind and on the device of s; the caller must order
// access to those that are valid on other streams. The error matches device.ErrMemory or [ErrClosed].
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

// launch enqueues f as work that is delayed as WithDelay determines. The error matches ErrClosed.
func (s *Stream) launch(f func() error) error {
	return s.enqueue(func() {
		s.work(func() error {
			s.kind.delay()
			return f()
		})
	})
}

// work runs f and stores its error, unless the stream has failed. Only tasks of s call it. Work that
// Close interrupts fails with ErrClosed, whatever error f returns.
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

// next removes the oldest task and returns it. If there is none it returns nil, and the goroutine that
// called it must end: the next enqueue starts another.
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
	done chan struct{}
	err  error // valid after done is closed
}

func (e *event) complete(err error) {
	e.err = err
	close(e.done)
}

func (e *event) Done() (bool, error) {
	select {
	case <-e.done:
		return true, e.err
	default:
		return false, nil
	}
}

func (e *event) Synchronize(ctx context.Context) error {
	if done, err := e.Done(); done {
		return err
	}
	select {
	case <-e.done:
		return e.err
	case <-ctx.Done():
		return ctx.Err()
	}
}
