package pipe

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/compress"
)

// unpack copies what came inside the message.
func (in *nativeIncoming) unpack(ctx context.Context, a Allocation) error {
	for k := range in.parts.Payloads {
		part := &in.parts.Payloads[k]
		if part.Inline && part.Codec != compress.None {
			if err := in.decompress(ctx, part.Codec, device.Bytes(a.Payloads[k]), part.Data); err != nil {
				return err
			}
		} else if part.Inline {
			copy(a.Payloads[k], part.Data)
		}
	}
	for k := range in.parts.Tensors {
		part := &in.parts.Tensors[k]
		if !part.Inline || part.Length == 0 {
			continue
		}
		var err error
		if part.Codec != compress.None {
			err = in.decompress(ctx, part.Codec, a.Tensors[k], part.Data)
		} else {
			err = in.place(ctx, a.Tensors[k], part.Data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// place copies one tensor to where the application wants it, in the order of
// that memory's stream.
func (in *nativeIncoming) place(ctx context.Context, dst device.Buffer, data []byte) error {
	if p, ok := dst.Contiguous(); ok && dst.Stream() == nil {
		copy(p, data)
		return nil
	}
	if !dst.IsHost() {
		in.lent = true
		return in.Incoming.pipe.context.copyTo(dst, device.Bytes(data))
	}
	if err := awaitStream(ctx, dst); err != nil {
		return err
	}
	return device.CopyHost(dst.WithStream(nil), device.Bytes(data))
}

// awaitStream waits until the host may write to b.
func awaitStream(ctx context.Context, b device.Buffer) error {
	s := b.Stream()
	if s == nil {
		return nil
	}
	ready, err := s.Record()
	if err != nil {
		return err
	}
	return ready.Synchronize(ctx)
}
