package delayed

import (
	"context"
	"fmt"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// Stream runs its work in order on a goroutine that lives while there is work.
// It implements [device.Stream].
//
// The first work that fails spoils the stream, as on real devices: what follows
// is skipped, and events report that error. So does waiting for an event that
// failed.
type Stream struct {
	kind   *Kind
	device device.Device

	// Guarded by kind.mu.
	tasks []func()
	busy  bool // a goroutine runs the tasks

	err error // what spoiled the stream; touched by its tasks only
}

// Device is the device given to NewStream.
func (s *Stream) Device() device.Device { return s.device }

// Record returns an event behind all work enqueued so far.
func (s *Stream) Record() (device.Event, error) {
	ev := &event{done: make(chan struct{})}
	if err := s.enqueue(func() { ev.complete(s.err) }); err != nil {
		return nil, err
	}
	return ev, nil
}

// Wait holds later work back until ev has completed.
func (s *Stream) Wait(ev device.Event) error {
	return s.enqueue(func() { s.work(func() error { return ev.Synchronize(s.kind.ctx) }) })
}

// Synchronize waits for all work enqueued so far and returns its error, or
// ctx's.
func (s *Stream) Synchronize(ctx context.Context) error {
	ev, err := s.Record()
	if err != nil {
		return err
	}
	return ev.Synchronize(ctx)
}

// Hold stops the stream at this point until release is called: work enqueued
// later waits, work enqueued before runs. Releasing again does nothing.
func (s *Stream) Hold() (release func()) {
	gate := make(chan struct{})
	// An error means that the kind is closed, when nothing runs anyway.
	_ = s.enqueue(func() {
		select {
		case <-gate:
		case <-s.kind.ctx.Done():
		}
	})
	return sync.OnceFunc(func() { close(gate) })
}

// Launch enqueues a kernel, which gets the memory of the buffers given to it
// and may use it until it returns. All of them must lie on the stream's device;
// which streams they are valid on is the caller's business.
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

// launch enqueues work that takes its time.
func (s *Stream) launch(f func() error) error {
	return s.enqueue(func() {
		s.work(func() error {
			s.kind.delay()
			return f()
		})
	})
}

// work runs f unless the stream is spoiled; it is called by tasks. What Close
// interrupts fails with [ErrClosed], whatever f makes of that.
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

// next takes the oldest task, or ends the goroutine's turn and returns nil.
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
	err  error // set before done is closed
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
