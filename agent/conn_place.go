package agent

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// placement is the memory that a PlaceFunc has chosen for the tensors of a message.
type placement struct {
	views   []codec.View
	tensors []*tensor.Tensor // one for each view, nil for one of the allocator
	parts   [][]int          // for each part of the message the indices of its views, by offset
	inPlace []bool           // for each part: it is received into the tensors
}

// place has the application choose memory for the tensors of the message, whose body must have been
// parsed and which d describes, and makes the decoder return the chosen tensors. If memory does not
// fit, the error is a *FitError; otherwise it is that of the codec, of the PlaceFunc or of a
// tensor.
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
// that of its tensors, and between them memory of the allocator, which nothing else uses. The error
// is that of the allocator or of a tensor. The buffer keeps only the memory of the allocator, and
// of a single tensor, reachable.
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
