package agent

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/chanmutex"
	"github.com/tensorpipe-go/tensorpipe/internal/errtext"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// TensorInfo describes a tensor of a message before its elements are received.
type TensorInfo struct {
	DType  tensor.DType
	Shape  []int
	Device device.Device // on which its memory must be: that of a host tensor is cpu:0
}

// PlaceFunc chooses the memory for the tensors of one message, which info describes in the order in
// which the sender encoded them: the fields of a struct in their order, the elements of a slice by
// their index, and a *tensor.Tensor that occurs several times only once. It returns one tensor for
// each, with the same dtype, shape and device, and contiguous; a tensor that is nil leaves the
// choice to Config.Allocator. The value that is decoded has these very tensors. They must not
// overlap, and their memory is in use from then on, as WithInto and WithArgsInto describe.
//
// m has the kind, the type and the name of the message, its sender and its headers, see WithHeader.
// The shapes are claims of the sender. ctx is that of the call, or that of the handler before
// interceptors have changed it. An error, or a panic, fails the call. Like a short handler the
// function may run on the goroutine of a caller, and it must not block, see WithShort.
type PlaceFunc func(ctx context.Context, m *Message, info []TensorInfo) ([]*tensor.Tensor, error)

// WithInto makes the call receive the tensors of its result into the memory of the given ones. The
// result then contains these very tensors: the k-th tensor that the function has encoded is
// tensors[k], see PlaceFunc for the order. A tensor that is nil leaves the choice to
// Config.Allocator. If the number of tensors, a dtype, a shape or a device differs, or a tensor is
// read-only or not contiguous, the call fails with a *FitError, which matches ErrResult, and no
// memory has been written to.
//
// The memory is in use until Call returns, or until the future of Go is done or its cancellation
// has returned. After that the agent does not write to the memory, however the call has ended;
// after an error its contents are undefined unless the error is a *FitError. The call keeps the
// slice.
//
// Elements are received in place, without a copy, if they are in contiguous memory at the sender
// and do not overlap other tensors of the message, and if the values of the result take at most 16
// KiB. Other host tensors are received elsewhere and copied; on another device, or in memory that
// is valid on a stream, they do not fit. The memory is not used for an error with which the
// function replies in place of a result.
func WithInto(tensors ...*tensor.Tensor) CallOption {
	return WithIntoFunc(func(context.Context, *Message, []TensorInfo) ([]*tensor.Tensor, error) { return tensors, nil })
}

// WithIntoFunc makes the call receive the tensors of its result into memory that f chooses once the
// reply has come, as WithInto does. With WithRetry f may be called for several replies, one after
// the other. If f is nil, the call fails with an error that matches ErrConfig.
func WithIntoFunc(f PlaceFunc) CallOption {
	return func(o *callOptions) {
		o.place = f
		if f == nil {
			o.err = errtext.Join(o.err, fmt.Errorf("%w: WithIntoFunc: the function is nil", ErrConfig))
		}
	}
}

// WithArgsInto makes a function receive the tensors of its argument into memory that f chooses. f
// is called once for each request, and concurrently for several; WithInto describes when elements
// are copied. If a tensor does not fit, the call fails with a *FitError, which matches
// ErrArguments, and no memory has been written to.
//
// The memory is in use until the function is called, or until the request has failed before; the
// agent does not write to it after that. f may call AfterReply with its context, so that it gets
// the memory back also if the function was not called. A caller describes its argument to f with
// WithHeader.
//
// WithArgsInto excludes WithOnce, because a repeated request would be received again: Join fails
// for a function with both, and if f is nil.
func WithArgsInto(f PlaceFunc) ServeOption {
	return func(s *Served) {
		s.entry.place = f
		if f == nil {
			s.err = fmt.Errorf("%w: %s: WithArgsInto: the function is nil", ErrConfig, s.entry.name)
		}
	}
}

// WithHeader adds a header to the request of a call, which a PlaceFunc and the interceptors of the
// called worker can read before the argument is decoded, see Message.Header. data must not change
// until the call has ended. A later header of the same name replaces an earlier one. The call fails
// with an error that matches ErrConfig if name is empty, begins with "agent." or is longer than
// 1024 bytes, and with ErrArguments if there are more than 64 headers.
func WithHeader(name string, data []byte) CallOption {
	return func(o *callOptions) {
		if name == "" || strings.HasPrefix(name, reservedTypes) || len(name) > wire.MaxName {
			o.err = errtext.Join(o.err, fmt.Errorf("%w: WithHeader: %.50q is no name of 1 to %d bytes that does not begin with %s", ErrConfig, name, wire.MaxName, reservedTypes))
			return
		}
		o.headers = append(o.headers, header{name, data})
	}
}

// header is a header of a request, see WithHeader.
type header struct {
	name string
	data []byte
}

// FitError is the error of a tensor that does not fit the memory chosen for it with WithInto,
// WithIntoFunc or WithArgsInto. No memory that was chosen for the message has been written to.
type FitError struct {
	Index  int    // of the tensor in the message, -1 if the numbers of tensors differ
	Tensor string // in the message, such as "f32 [2 3]" or "3 tensors"
	Memory string // chosen for it, such as "f32 [3 2]", "read-only" or "2 tensors"
}

func (e *FitError) Error() string {
	if e.Index < 0 {
		return fmt.Sprintf("the message has %s, and the memory chosen for it %s", e.Tensor, e.Memory)
	}
	return fmt.Sprintf("tensor %d is %s, and the memory chosen for it is %s", e.Index, e.Tensor, e.Memory)
}

// checkFit returns nil if the memory of t is suitable for a tensor of a message that info
// describes, the one with the given index, or a *FitError. If the storage of t was released, the
// error is tensor.ErrReleased.
func checkFit(index int, info *TensorInfo, t *tensor.Tensor) error {
	fault := &FitError{Index: index, Tensor: fmt.Sprintf("%v %v", info.DType, info.Shape)}
	switch {
	case t.DType() != info.DType || !slices.Equal(t.Shape(), info.Shape):
		fault.Memory = fmt.Sprintf("%v %v", t.DType(), t.Shape())
	case t.Device() != info.Device:
		fault.Tensor, fault.Memory = "for "+info.Device.String(), "on "+t.Device().String()
	case t.ReadOnly():
		fault.Memory = "read-only"
	case !t.IsContiguous():
		fault.Memory = "not contiguous"
	default:
		_, err := t.Buffer()
		return err
	}
	return fault
}

// destination is the memory that the application chooses for the tensors of the result of one call,
// or of one request.
type destination struct {
	place PlaceFunc
	ctx   context.Context // passed to place; elements are received until it ends
	stop  context.CancelCauseFunc
	inUse chanmutex.Mutex // held while elements are written to the memory
}

// newDestination returns a destination whose memory place chooses. It is in use until ctx ends or
// end is called; the caller must call end. If place is nil, newDestination returns nil.
func newDestination(ctx context.Context, place PlaceFunc) *destination {
	if place == nil {
		return nil
	}
	d := &destination{place: place, inUse: chanmutex.New()}
	d.ctx, d.stop = context.WithCancelCause(ctx)
	return d
}

// write runs f, which writes elements to the memory of d. If the destination has ended before, it
// does not run f and returns the cause of d.ctx; otherwise it returns the error of f. If d is nil,
// it runs f.
func (d *destination) write(f func() error) error {
	if d == nil {
		return f()
	}
	d.inUse.Lock()
	defer d.inUse.Unlock()
	if err := ctxerr.Cause(d.ctx); err != nil {
		return err
	}
	return f()
}

// end ends the writing to the memory of d, with the given cause, and blocks until no goroutine
// writes to it, which does not depend on the other end of the pipe. Further calls, and calls for
// nil, do nothing.
func (d *destination) end(cause error) {
	if d == nil {
		return
	}
	d.stop(cause)
	d.inUse.Lock()
	defer d.inUse.Unlock()
}

// placement is the memory that a PlaceFunc has chosen for the tensors of a message.
type placement struct {
	views   []codec.View
	tensors []*tensor.Tensor // one for each view, nil for one of the allocator
	parts   [][]int          // for each part of the message the indices of its views, by offset
	inPlace []bool           // for each part: it is received into the tensors
}

// place lets the application choose memory for the tensors of the message, whose body must have
// been parsed and which d describes, and makes the decoder return the chosen tensors. If memory
// does not fit, the error is a *FitError; otherwise it is that of the codec, of the PlaceFunc or of
// a tensor.
func (in *inMessage) place(d *pipe.Descriptor) error {
	views, err := in.decoder.Views()
	if err != nil {
		return err
	}
	info := make([]TensorInfo, len(views))
	for i := range views {
		info[i] = TensorInfo{views[i].DType, views[i].Shape, d.Tensors[views[i].Part].TargetDevice}
	}
	tensors, err := in.dst.place(in.dst.ctx, &in.view, info)
	if err != nil {
		return err
	}
	if len(tensors) != len(views) {
		return &FitError{Index: -1, Tensor: fmt.Sprintf("%d tensors", len(views)), Memory: fmt.Sprintf("%d tensors", len(tensors))}
	}
	for i, t := range tensors {
		if t == nil {
			continue
		}
		if err := checkFit(i, &info[i], t); err != nil {
			return err
		}
	}
	in.placed = newPlacement(views, tensors, len(d.Tensors))
	for i := range d.Tensors {
		if in.placed.inPlace[i] = in.payload == nil && in.placed.fits(i, d.Tensors[i].Length); in.placed.inPlace[i] {
			continue
		}
		for _, k := range in.placed.parts[i] {
			if t := tensors[k]; t != nil && !isCopyable(t) {
				return &FitError{Index: k, Tensor: "one that must be copied at the receiver", Memory: "on " + t.Device().String() + ", where it cannot be"}
			}
		}
	}
	return in.decoder.Place(tensors)
}

// isCopyable reports whether the elements of a tensor can be copied to the contiguous memory of t
// without waiting: whether that is host memory and has no stream.
func isCopyable(t *tensor.Tensor) bool {
	b, err := t.Buffer()
	return err == nil && b.IsHost() && b.Stream() == nil
}

// newPlacement returns a placement of the tensors with these views, in a message of n parts, of
// which none is in place yet. The slices are kept.
func newPlacement(views []codec.View, tensors []*tensor.Tensor, n int) *placement {
	p := &placement{views: views, tensors: tensors, parts: make([][]int, n), inPlace: make([]bool, n)}
	order := make([]int, len(views))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		v, w := &views[a], &views[b]
		return cmp.Or(cmp.Compare(v.Part, w.Part), cmp.Compare(v.Offset*v.DType.Size(), w.Offset*w.DType.Size()), cmp.Compare(a, b))
	})
	for len(order) > 0 {
		part, k := views[order[0]].Part, 1
		for k < len(order) && views[order[k]].Part == part {
			k++
		}
		p.parts[part], order = order[:k], order[k:]
	}
	return p
}

// fits reports whether a part of the given length, in bytes, can be received into the tensors that
// were chosen: if the part has views, all of them have a tensor, are contiguous and within the
// part, and do not overlap each other. Memory that the host cannot address, or that has a stream,
// must take the whole part.
func (p *placement) fits(part, length int) bool {
	end := 0
	for _, i := range p.parts[part] {
		v, t := &p.views[i], p.tensors[i]
		if t == nil || !v.IsContiguous() || v.Offset > length/v.DType.Size() {
			return false
		}
		from := v.Offset * v.DType.Size()
		if from < end || t.ByteSize() > length-from {
			return false
		}
		end = from + t.ByteSize()
		if !isCopyable(t) && t.ByteSize() < length {
			return false
		}
	}
	return len(p.parts[part]) > 0
}

// buffer returns the memory into which a part of the given length, in bytes, is received in place:
// the memory of its tensors, and for bytes of the part that belong to no tensor memory of the
// allocator, which nothing else uses. The error is that of the allocator or of a tensor. The buffer
// keeps the memory of the allocator reachable, and that of the tensor if there is only one; the
// caller must keep several tensors reachable.
func (p *placement) buffer(part, length int, host tensor.Allocator) (device.Buffer, error) {
	gaps := length
	for _, i := range p.parts[part] {
		gaps -= p.tensors[i].ByteSize()
	}
	if gaps == 0 && len(p.parts[part]) == 1 {
		return p.tensors[p.parts[part][0]].Buffer()
	}
	between, err := host.Alloc(gaps)
	if err != nil {
		return device.Buffer{}, err
	}
	unused, err := between.Bytes()
	if err != nil {
		return device.Buffer{}, err
	}
	var segments [][]byte
	end := 0
	for _, i := range p.parts[part] {
		b, err := p.tensors[i].Buffer()
		if err != nil {
			return device.Buffer{}, err
		}
		from := p.views[i].Offset * p.views[i].DType.Size()
		segments = b.AppendSegments(append(segments, unused[:from-end]))
		unused, end = unused[from-end:], from+b.Len()
	}
	return device.Host(append(segments, unused)...).WithOwner(between), nil
}

// copyElsewhere copies the elements of the placed tensors whose parts were not received in place
// from the storages of the message to the tensors. The error matches ErrProtocol if a view is not
// within its part, or is tensor.ErrReleased or tensor.ErrReadOnly if the application has changed a
// tensor.
func (in *inMessage) copyElsewhere() error {
	p := in.placed
	for part, inPlace := range p.inPlace {
		if inPlace {
			continue
		}
		for _, i := range p.parts[part] {
			if p.tensors[i] == nil {
				continue
			}
			v := &p.views[i]
			from, err := tensor.Strided(in.storages[part], v.DType, v.Shape, v.Strides, v.Offset)
			if err != nil {
				return fmt.Errorf("%w: %w", ErrProtocol, err)
			}
			if err := p.tensors[i].CopyFrom(from); err != nil {
				return err
			}
		}
	}
	return nil
}
