package bench

import (
	"cmp"
	"context"
	"errors"
	"time"
)

// Yardstick moves the same bytes as a pipe by simpler means, for comparison.
type Yardstick interface {
	// Name returns the name of the yardstick in results.
	Name() string

	// Measure moves the one-way messages of s between memory of the same kind. It returns nil, nil if
	// that would not be comparable with r, a measurement of s. It returns early with an error when ctx
	// ends.
	Measure(ctx context.Context, s Spec, r *Result) (*Result, error)
}

// Yardsticks returns all yardsticks. child is the program that a yardstick starts if it needs a
// second process; the program must call RunChild.
func Yardsticks(child Program) []Yardstick { return []Yardstick{Memcpy{}, TCP{child}, DeviceCopy{}} }

// yardstickSize is a size from which the cost per byte exceeds that per message.
const yardstickSize = 64 << 10

// hasYardstick reports whether s sends messages one way that are large enough, from 64 KiB, to be
// compared with a yardstick.
func (s Spec) hasYardstick() bool { return s.Size >= yardstickSize && s.OneWay > 0 }

// batchSizes returns the number of messages of each one-way batch, in order. The first batch is a
// warm-up; the sum of the others is s.OneWay. s must have its defaults.
func (s Spec) batchSizes() []int {
	out := []int{min(s.OneWay, s.batch())}
	for remaining := s.OneWay; remaining > 0; remaining -= s.batch() {
		out = append(out, min(remaining, s.batch()))
	}
	return out
}

// newYardstickResult returns the result of the yardstick with that name, which has moved the
// one-way messages of s in the time took and has used the CPU time cpu.
func newYardstickResult(name string, s Spec, took, cpu time.Duration) *Result {
	r := &Result{
		Subject: name, Device: s.Device, ServerDevice: s.ServerDevice, SizeBytes: s.Size, Named: s.Named, Buffers: s.Buffers, Depth: s.Depth,
		Messages: s.OneWay, Processes: 1, CPUSeconds: cpu.Seconds(), Data: s.Data, WireShare: 1,
	}
	r.setRate(took)
	return r
}

// Memcpy is the Yardstick of Go's copy from the memory of one message to that of another, on one core.
type Memcpy struct{}

// Name returns "memcpy", the name of this yardstick in results.
func (Memcpy) Name() string { return "memcpy" }

// Measure copies the one-way messages of s from one memory to another on this goroutine, compares
// the copies, and returns the result. It returns nil, nil if s sends messages that are too small to
// compare, or none, or if they are on a GPU. The error is that of the allocator, matches ErrCorrupt, or
// is the cause of ctx.
func (m Memcpy) Measure(ctx context.Context, s Spec, _ *Result) (*Result, error) {
	s = s.withDefaults()
	if !s.hasYardstick() || s.onGPU() {
		return nil, nil
	}
	from, to := &arena{buffers: s.Buffers}, &arena{buffers: s.Buffers}
	defer from.release()
	defer to.release()
	return s.measureCopies(ctx, m.Name(), from, to, func(n int) error {
		for k := range n {
			copy(to.slot(k), from.slot(k))
		}
		return nil
	})
}

// measureCopies measures copies of the one-way messages of s, and returns the result of the yardstick
// with that name. The argument copies copies the first n slots of from to those of to, and returns once
// the bytes are there. measureCopies compares them. The error is that of from, to or copies, matches
// ErrCorrupt, or is the cause of ctx.
func (s Spec) measureCopies(ctx context.Context, name string, from, to memory, copies func(n int) error) (*Result, error) {
	if err := cmp.Or(from.resize(s.batch(), s.Size), to.resize(s.batch(), s.Size)); err != nil {
		return nil, err
	}
	var took, cpu time.Duration
	for i, n := range s.batchSizes() {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		if err := from.fill(n, i); err != nil {
			return nil, err
		}
		before, start := cpuTime(), time.Now()
		if err := copies(n); err != nil {
			return nil, err
		}
		if i > 0 {
			took, cpu = took+time.Since(start), cpu+cpuTime()-before
		}
		if err := to.check(n, i); err != nil {
			return nil, err
		}
	}
	return newYardstickResult(name, s, took, cpu), nil
}

// DeviceCopy is the Yardstick of the driver's copies from memory of the client's GPU to memory of the
// server's, within one process and without a wait between them.
type DeviceCopy struct{}

// Name returns "devicecopy", the name of this yardstick in results.
func (DeviceCopy) Name() string { return "devicecopy" }

// Measure copies the one-way messages of s, waits for the GPU once for each batch, compares the copies,
// and returns the result. It returns nil, nil if s sends messages that are too small to compare, or none,
// or if they are in host memory. The error matches ErrPath or ErrCorrupt, is that of the device kind, or
// the cause of ctx.
func (d DeviceCopy) Measure(ctx context.Context, s Spec, _ *Result) (r *Result, err error) {
	s = s.withDefaults()
	if !s.hasYardstick() || !s.onGPU() {
		return nil, nil
	}
	kind, err := openGPUs(s)
	if err != nil {
		return nil, err
	}
	from, err := newGPUArena(s, kind, false)
	if err != nil {
		return nil, errors.Join(err, kind.Close())
	}
	to, err := newGPUArena(s, kind, true)
	if err != nil {
		return nil, errors.Join(err, kind.Close())
	}
	if s.Device == s.ServerDevice {
		to.streams = from.streams // so that a copy needs no events
	}
	r, err = s.measureCopies(ctx, d.Name(), from, to, func(n int) error {
		for k := range n {
			if err := kind.Copy(to.slots[k], from.slots[k]); err != nil {
				return err
			}
		}
		return settleAll(to, n)
	})
	return r, errors.Join(err, kind.Close())
}
