package pipe

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/compress"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
)

// The compressed form of a part that does not travel inside its message is
// received into the end of the memory that Read was given, and decoded there:
// it takes no other.

// tail is the end of b into which n bytes of a compressed form, or of all of it,
// are received.
func tail(b device.Buffer, n uint64) device.Buffer {
	if n == uint64(b.Len()) {
		return b
	}
	return b.Slice(b.Len()-int(n), int(n))
}

// checkCodec refuses a compressed part unless the two ends agreed on that.
func (in *nativeIncoming) checkCodec(codec compress.Codec) error {
	if codec == compress.None {
		return nil
	}
	if !in.in.pipe.compresses {
		return errors.New("it is compressed, which this end did not agree to")
	}
	in.packed++
	return nil
}

// checkTensorCodec also refuses one that might go to memory that the host cannot
// decompress in.
func (in *nativeIncoming) checkTensorCodec(t *native.Tensor) error {
	if t.Codec != compress.None && !in.Incoming.pipe.staysOnHost(t.Source, t.Target, true) {
		return fmt.Errorf("it is compressed, and on its way from %s to %s", t.Source, t.Target)
	}
	return in.checkCodec(t.Codec)
}

// checkMemory refuses memory of cpu:0 that the host cannot address for what is
// compressed.
func (in *nativeIncoming) checkMemory(a Allocation) error {
	if in.packed == 0 {
		return nil
	}
	for k := range in.parts.Tensors {
		if in.parts.Tensors[k].Codec != compress.None && !a.Tensors[k].IsHost() {
			return allocationError("tensor %d: it travels compressed, and the host cannot address the memory", k)
		}
	}
	return nil
}

// decompress decodes a form that came inside the message.
func (in *nativeIncoming) decompress(ctx context.Context, codec compress.Codec, dst device.Buffer, form []byte) error {
	if err := awaitStream(ctx, dst); err != nil {
		return err
	}
	err := in.coders().Unpack(codec, dst.AppendSegments(nil), form, goOn(ctx))
	runtime.KeepAlive(dst)
	return in.decompressed(err)
}

// unpackLarge decodes the forms that channels have brought.
func (in *nativeIncoming) unpackLarge(ctx context.Context, a Allocation) error {
	if in.packed == 0 {
		return nil
	}
	for k := range in.parts.Payloads {
		if p := &in.parts.Payloads[k]; !p.Inline && p.Codec != compress.None {
			if err := in.expand(ctx, p.Codec, device.Bytes(a.Payloads[k]), p.Form); err != nil {
				return err
			}
		}
	}
	for k := range in.parts.Tensors {
		if t := &in.parts.Tensors[k]; !t.Inline && t.Codec != compress.None {
			if err := in.expand(ctx, t.Codec, a.Tensors[k], t.Form); err != nil {
				return err
			}
		}
	}
	return nil
}

// expand decodes the form in the last n bytes of dst.
func (in *nativeIncoming) expand(ctx context.Context, codec compress.Codec, dst device.Buffer, n uint64) error {
	if err := awaitStream(ctx, dst); err != nil {
		return err
	}
	check := func() error {
		in.Incoming.pipe.arrived(compress.BlockSize)
		return context.Cause(ctx)
	}
	err := in.coders().UnpackInPlace(codec, dst.AppendSegments(nil), int(n), check)
	runtime.KeepAlive(dst)
	return in.decompressed(err)
}

func (in *nativeIncoming) coders() *compress.Coders { return in.Incoming.pipe.context.coders }

func goOn(ctx context.Context) func() error {
	return func() error { return context.Cause(ctx) }
}

// decompressed says what the outcome of decoding means: one who sends what does
// not decode breaks the protocol.
func (in *nativeIncoming) decompressed(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, compress.ErrCorrupt):
		err = protocolError("message %d: %w", in.number, err)
		in.Incoming.pipe.dialect.fail(in.errorFor(err))
		return err
	default:
		return fmt.Errorf("%w: %w", ErrCancelled, err)
	}
}

// countSavings notes the compressed parts of a message that has been read.
func (in *nativeIncoming) countSavings() {
	if in.packed == 0 {
		return
	}
	for k := range in.parts.Payloads {
		if p := &in.parts.Payloads[k]; p.Codec != compress.None {
			in.in.saved.add(p.Length, p.Form)
		}
	}
	for k := range in.parts.Tensors {
		if t := &in.parts.Tensors[k]; t.Codec != compress.None {
			in.in.saved.add(t.Length, t.Form)
		}
	}
}
