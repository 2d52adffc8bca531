// Package delayed is a device kind for tests of everything that must respect
// streams, on machines without any device. It lives in ordinary memory but
// behaves like an accelerator on a bad day: copies and kernels run when their
// stream comes to them, on a goroutine of their own, and a test decides when
// that is with [Stream.Hold]. Whoever reads a buffer without waiting for its
// stream finds old bytes, and the race detector tells who it was.
//
// Memory cannot be addressed from the host. Misuse that a real driver might
// let pass is an error: memory or a stream of another kind or device, copies of
// unequal length, calls after Close.
//
//	k := delayed.New("npu", 2)
//	defer k.Close()
//	s, _ := k.NewStream(k.Devices()[0])
//	b, _ := k.Alloc(s.Device(), 3, s)
//	release := s.(*delayed.Stream).Hold()
//	_ = k.Write(b, []byte("abc")) // enqueued behind the hold
//	release()
//	_ = s.Synchronize(ctx)
package delayed

import (
	"context"
	"fmt"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// Kind is a device kind with streams. It implements [device.Kind]. All methods
// may be called concurrently.
type Kind struct {
	name  string
	delay func()
	ctx   context.Context // ends with Close
	stop  context.CancelFunc

	mu       sync.Mutex // guards what follows and the queues of all streams
	closed   bool
	defaults []*Stream // by device index
	workers  sync.WaitGroup
}

// Option changes a Kind.
type Option func(*Kind)

// WithDelay makes each stream call wait before each copy and kernel, on the
// stream's goroutine. wait may yield or block for a while, but not for ever:
// Close waits for it.
func WithDelay(wait func()) Option {
	return func(k *Kind) { k.delay = wait }
}

// New returns a kind of that name with devices 0 to n-1.
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

// Name is the name given to New.
func (k *Kind) Name() string { return k.name }

// Viable is always nil.
func (k *Kind) Viable() error { return nil }

// Devices lists the devices in the order of their indexes.
func (k *Kind) Devices() []device.Device {
	out := make([]device.Device, len(k.defaults))
	for i, s := range k.defaults {
		out[i] = s.device
	}
	return out
}

// NewStream makes a stream on d. It costs nothing while it has no work and
// lives as long as the kind.
func (k *Kind) NewStream(d device.Device) (device.Stream, error) {
	if _, err := k.defaultStream(d); err != nil {
		return nil, err
	}
	return &Stream{kind: k, device: d}, nil
}

// Close drops the work that has not begun, releases what is held, and returns
// when no stream runs any more. Events that were recorded complete with
// [ErrClosed]. It must not be called from a kernel. Closing again waits for the
// same.
func (k *Kind) Close() {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.stop()
	k.workers.Wait()
}

// defaultStream returns the stream for buffers that name none.
func (k *Kind) defaultStream(d device.Device) (*Stream, error) {
	if d.Kind != k.name || d.Index < 0 || d.Index >= len(k.defaults) {
		return nil, fmt.Errorf("delayed: kind %s has no %v: %w", k.name, d, device.ErrDevice)
	}
	return k.defaults[d.Index], k.open()
}

// open is nil until Close.
func (k *Kind) open() error {
	if k.ctx.Err() != nil {
		return fmt.Errorf("delayed: kind %s: %w", k.name, ErrClosed)
	}
	return nil
}
