package cudaipc

import (
	"errors"
	"runtime"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// work is work on one GPU that sets a tensor, computed from others. It is on the stream of the
// destination, after the present work of the streams of the others, which then wait for it.
type work struct {
	gpu     *gpu
	stream  *Stream // of the destination
	dst     *operand
	sources []*operand
	streams []*Stream // of the sources, without duplicates
	temps   []*Memory // intermediate results, released at the end
}

// operand is a tensor on the GPU of its work.
type operand struct {
	*tensor.Tensor
	memory *Memory
	stream *Stream
	ptr    driver.Ptr // of the first element
}

// run enqueues the work that f enqueues on w.stream, with the order that type work describes. f runs
// with the context of the GPU. The error is that of f, ErrClosed, that of the driver, or matches
// device.ErrMemory, device.ErrStream or tensor.ErrReleased for tensors that are not of k or not of
// one device.
func (k *Kind) run(f func(w *work) error, dst *tensor.Tensor, sources ...*tensor.Tensor) error {
	w := &work{}
	var err error
	if w.dst, err = k.newOperand(dst); err != nil {
		return err
	}
	w.gpu, w.stream = w.dst.memory.gpu, w.dst.stream
	for _, t := range sources {
		o, err := k.newOperand(t)
		if err != nil {
			return err
		}
		if o.memory.gpu.device != w.gpu.device {
			return deviceMismatch(dst, t)
		}
		w.sources = append(w.sources, o)
		if !slices.Contains(w.streams, o.stream) {
			w.streams = append(w.streams, o.stream)
		}
	}
	if err := w.gpu.enter(); err != nil {
		return err
	}
	defer w.gpu.leave()
	for _, s := range w.streams {
		if err := w.gpu.order(w.stream.handle, s.handle); err != nil {
			return err
		}
	}
	err = errors.Join(f(w), w.finish())
	runtime.KeepAlive(dst)
	runtime.KeepAlive(sources)
	return err
}

// newOperand returns t as an operand.
func (k *Kind) newOperand(t *tensor.Tensor) (*operand, error) {
	buf, err := t.Storage().Buffer()
	if err != nil {
		return nil, err
	}
	m, at, err := k.memoryOf(buf)
	if err != nil {
		return nil, err
	}
	s, ok := buf.Stream().(*Stream)
	if !ok {
		if s, err = m.gpu.defaultStream(); err != nil {
			return nil, err
		}
	}
	return &operand{Tensor: t, memory: m, stream: s, ptr: at + driver.Ptr(t.Offset()*t.DType().Size())}, nil
}

// finish makes the streams of the sources wait for the work, and releases the intermediate results.
// It does so after an error too, because a part of the work may be enqueued.
func (w *work) finish() error {
	var all []error
	for _, s := range w.streams {
		all = append(all, w.gpu.order(s.handle, w.stream.handle))
	}
	for _, o := range append(w.sources, w.dst) {
		o.memory.usedOn(o.stream)
	}
	for _, m := range w.temps {
		m.release()
	}
	return errors.Join(all...)
}

// temp returns memory for an intermediate result of n elements with size bytes.
func (w *work) temp(n, size int) (driver.Ptr, error) {
	m, err := w.gpu.alloc(n*size, w.stream)
	if err != nil {
		return 0, err
	}
	w.temps = append(w.temps, m)
	return m.ptr, nil
}

// contiguous returns the address of the elements of o in row-major order: those of o itself, or of a
// copy that it enqueues.
func (w *work) contiguous(o *operand) (driver.Ptr, error) {
	return w.rowMajor(o, o.Shape(), o.Strides())
}

// rowMajor is contiguous for a view of o with the given shape and strides, which begins with the
// same element.
func (w *work) rowMajor(o *operand, shape, strides []int) (driver.Ptr, error) {
	l := newLayout(o.DType().Size(), shape, rowMajorStrides(shape), strides)
	if l.contiguous() {
		return o.ptr, nil
	}
	to, err := w.temp(l.len(), o.DType().Size())
	if err != nil {
		return 0, err
	}
	return to, w.copy(to, o.ptr, l)
}

// output returns the address for a contiguous result with the elements of o. store must follow.
func (w *work) output(o *operand) (driver.Ptr, error) {
	if o.IsContiguous() {
		return o.ptr, nil
	}
	return w.temp(o.Len(), o.DType().Size())
}

// store enqueues the copy of the result at p, which output has returned, to o.
func (w *work) store(o *operand, p driver.Ptr) error {
	if p == o.ptr {
		return nil
	}
	shape := o.Shape()
	return w.copy(o.ptr, p, newLayout(o.DType().Size(), shape, o.Strides(), rowMajorStrides(shape)))
}

// copy enqueues a copy of the elements at from to those at to.
func (w *work) copy(to, from driver.Ptr, l *layout) error {
	if l.len() == 0 {
		return nil
	}
	if l.contiguous() {
		return w.gpu.driver.Copy(to, from, l.len()*l.element, w.stream.handle)
	}
	args := []uint64{uint64(to), uint64(from)}
	return w.launch("copy", l.len(), append(args, l.params()...)...)
}

// launch enqueues a kernel for n elements on the stream of w.
func (w *work) launch(name string, n int, args ...uint64) error {
	return w.gpu.launch(w.stream.handle, name, blocksFor(n), maxThreads, args...)
}
