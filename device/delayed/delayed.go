// Package delayed is a device kind for tests of code that must respect streams, on machines without
// a device. It uses ordinary memory but behaves like a slow accelerator: each stream runs copies
// and kernels later, on its own goroutine, and a test determines when with [Stream.Hold]. Code that
// reads a buffer without waiting for its stream finds old bytes, and the race detector reports it.
//
// Memory cannot be addressed from the host. Misuse that a real driver might not detect is an error:
// memory or a stream of another kind or device, copies of unequal length, calls after Close.
//
//	k := delayed.New("npu", 2)
//	defer k.Close()
//	s, _ := k.NewStream(k.Devices()[0])
//	b, _ := k.Alloc(s.Device(), 3, s)
//	release := s.(*delayed.Stream).Hold()
//	_ = k.Write(b, []byte("abc")) // runs after release
//	release()
//	_ = s.Synchronize(ctx)
package delayed

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// Kind is a device kind with streams. It implements [device.Kind]. All methods
// may be called concurrently.
type Kind struct {
	name  string
	delay func()
	ctx   context.Context // ended by Close
	stop  context.CancelFunc

	mu       sync.Mutex // guards the fields below and the queues of all streams
	closed   bool
	defaults []*Stream // by device index
	workers  sync.WaitGroup
}

// Option configures a Kind.
type Option func(*Kind)

// WithDelay returns an Option that makes each stream call wait before each copy and kernel, on the
// goroutine of the stream. wait may block for a while, but must return, because Close waits for it.
// If several streams have work, wait is called concurrently.
func WithDelay(wait func()) Option {
	return func(k *Kind) { k.delay = wait }
}

// New returns a kind with the given name and n devices, whose indexes are 0 to n-1. The caller must
// close it.
func New(name string, n int, opts ...Option) *Kind {
	k := &Kind{name: name, delay: func() {}}
	k.ctx, k.stop = context.WithCancel(context.Background())
	for i := range n {
		k.defaults = append(k.defaults, &Stream{kind: k, device: device.Device{Kind: name, Index: i}})
	}
	for _, opt := range opts {
		opt(k)
	}
	return k
}

// Name returns the name passed to New.
func (k *Kind) Name() string { return k.name }

// Viable returns nil, since the kind works on every machine.
func (k *Kind) Viable() error { return nil }

// Devices returns a new list of the devices, in the order of their indexes.
func (k *Kind) Devices() []device.Device {
	out := make([]device.Device, len(k.defaults))
	for i, s := range k.defaults {
		out[i] = s.device
	}
	return out
}

// NewStream returns a new stream on d. A stream need not be closed: it has a goroutine only while
// it has work, and does no more work after Close of the kind. The error matches device.ErrDevice if
// the kind has no device d, or [ErrClosed] after Close.
func (k *Kind) NewStream(d device.Device) (device.Stream, error) {
	if _, err := k.defaultStream(d); err != nil {
		return nil, err
	}
	return &Stream{kind: k, device: d}, nil
}

// Close ends all holds, drops the copies and kernels that have not begun, and waits until those
// that run have ended and all events have completed. Dropped work counts as work that failed with
// [ErrClosed]. Later copies, kernels and calls that create memory or streams fail with an error
// that matches ErrClosed, unless their arguments are wrong too. Close must not be called from a
// kernel. A further Close only waits.
func (k *Kind) Close() {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.stop()
	k.workers.Wait()
}

// defaultStream returns the default stream of d, for work on buffers that have no stream. The error
// matches device.ErrDevice if the kind has no device d, or ErrClosed after Close; the stream must
// not be used then.
func (k *Kind) defaultStream(d device.Device) (*Stream, error) {
	if d.Kind != k.name || d.Index < 0 || d.Index >= len(k.defaults) {
		return nil, fmt.Errorf("delayed: kind %s has no %v: %w", k.name, d, device.ErrDevice)
	}
	return k.defaults[d.Index], k.open()
}

// open returns nil if the kind is open, and an error that matches ErrClosed after Close has been
// called.
func (k *Kind) open() error {
	if k.ctx.Err() != nil {
		return fmt.Errorf("delayed: kind %s: %w", k.name, ErrClosed)
	}
	return nil
}

// ErrClosed matches errors about the use of a kind that was closed, which ends its memory and
// streams. Close a kind after everything that uses it.
var ErrClosed = errors.New("device kind is closed")
