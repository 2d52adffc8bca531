package pipe

import (
	"cmp"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/internal/native"
)

// What a part takes beside its bytes of the frame, once that was taken apart.
const (
	payloadHeld = 104
	tensorHeld  = 200
)

// cost is the memory that a message takes, with inline bytes that are still to come.
func (in *nativeIncoming) cost() int {
	body := in.body
	if body == nil {
		body = in.frame
	}
	payloads, tensors := native.CountParts(body)
	return messageOverhead + len(in.frame) + in.whole + payloads*payloadHeld + tensors*tensorHeld
}

// decode takes the body of the frame apart and checks it against the limits and
// the channels of the pipe.
func (in *nativeIncoming) decode() error {
	limits := &in.Incoming.pipe.context.limits
	if err := in.memory.grow(in.cost()); err != nil {
		return err
	}
	if err := in.parts.Decode(in.body, limits.native()); err != nil {
		return nativeError(err)
	}
	return in.describe(limits)
}

// decodeHead does so for a message of which frame has all but the inline bytes,
// while its body has length.
func (in *nativeIncoming) decodeHead(length uint32) error {
	limits := &in.Incoming.pipe.context.limits
	if err := in.memory.grow(in.cost()); err != nil {
		return err
	}
	if err := in.parts.DecodeHead(in.frame, length, limits.native()); err != nil {
		return nativeError(err)
	}
	in.whole = int(length) - len(in.frame)
	in.coming = in.whole
	return in.describe(limits)
}

func (in *nativeIncoming) describe(limits *Limits) error {
	d := &in.desc
	d.Metadata = in.parts.Metadata
	d.setTimeLeft(in.parts.Deadline)
	if err := cmp.Or(in.describePayloads(limits), in.describeTensors(limits)); err != nil {
		return err
	}
	if n := d.Bytes(); n > limits.MessageBytes {
		return protocolError("%w", limitError("message", uint64(n), uint64(limits.MessageBytes)))
	}
	return nil
}

func (in *nativeIncoming) describePayloads(limits *Limits) error {
	d := &in.desc
	d.Payloads = slices.Grow(d.Payloads, len(in.parts.Payloads))
	for k := range in.parts.Payloads {
		part := &in.parts.Payloads[k]
		if part.Length > uint64(limits.PayloadBytes) {
			return protocolError("%w", limitError("payload", part.Length, uint64(limits.PayloadBytes)))
		}
		if err := in.checkCodec(part.Codec); err != nil {
			return protocolError("payload %d: %w", k, err)
		}
		d.Payloads = append(d.Payloads, PayloadDescriptor{Length: int(part.Length), Metadata: part.Metadata})
		in.count(part.Inline)
	}
	return nil
}

func (in *nativeIncoming) describeTensors(limits *Limits) error {
	d := &in.desc
	d.Tensors = slices.Grow(d.Tensors, len(in.parts.Tensors))
	for k := range in.parts.Tensors {
		part := &in.parts.Tensors[k]
		if part.Length > uint64(limits.TensorBytes) {
			return protocolError("%w", limitError("tensor", part.Length, uint64(limits.TensorBytes)))
		}
		d.Tensors = append(d.Tensors, TensorDescriptor{
			Length: int(part.Length), SourceDevice: part.Source, TargetDevice: part.Target, Metadata: part.Metadata,
		})
		if err := in.Incoming.pipe.checkArrival(&d.Tensors[k]); err != nil {
			return protocolError("tensor %d: %w", k, err)
		}
		if err := in.checkTensorCodec(part); err != nil {
			return protocolError("tensor %d: %w", k, err)
		}
		in.count(part.Inline)
	}
	return nil
}

func (in *nativeIncoming) count(inline bool) {
	if !inline {
		in.large++
	}
}
