package cudaipc

import (
	"context"
	"errors"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/safetensors"
)

// loadChunk is the size in bytes of the largest page-locked block through which a file is loaded.
const loadChunk = 4 << 20

// LoadTensor returns the tensor of f with the given name in memory of d, valid on the stream that
// device.StreamFrom(ctx, d) names. The bytes pass through at most 8 MiB of page-locked memory, so that
// the next part of the file is read while the one before is copied. The last copies may not be complete
// when LoadTensor returns.
//
// The error is one of [safetensors.File.Tensor] for the file, one of Alloc, or that of ctx if it ends
// while a copy is awaited.
func (k *Kind) LoadTensor(ctx context.Context, f *safetensors.File, name string, d device.Device) (*tensor.Tensor, error) {
	info, err := f.Info(name)
	if err != nil {
		return nil, err
	}
	l, err := k.newLoader(ctx, f, d, []safetensors.Info{info})
	if err != nil {
		return nil, err
	}
	x, err := l.load(ctx, info)
	return x, errors.Join(err, l.close())
}

// LoadTensors returns all tensors of f by name, as LoadTensor does. If one cannot be loaded it returns
// only an error.
func (k *Kind) LoadTensors(ctx context.Context, f *safetensors.File, d device.Device) (map[string]*tensor.Tensor, error) {
	l, err := k.newLoader(ctx, f, d, f.Infos())
	if err != nil {
		return nil, err
	}
	tensors := make(map[string]*tensor.Tensor)
	for _, info := range f.Infos() {
		var x *tensor.Tensor
		if x, err = l.load(ctx, info); err != nil {
			break
		}
		tensors[info.Name] = x
	}
	if err = errors.Join(err, l.close()); err != nil {
		for _, x := range tensors {
			x.Release()
		}
		return nil, err
	}
	return tensors, nil
}

// loader copies tensors of a file to a device through two page-locked blocks in turn, of which the
// second is allocated when the first is full.
type loader struct {
	kind   *Kind
	gpu    *gpu
	stream *Stream
	file   *safetensors.File

	size    int // of each block
	blocks  [2]*pinnedBlock
	copied  [2]device.Event // after the copies out of the full blocks
	current int             // the block that is being filled
	used    int             // bytes of it
}

// newLoader returns a loader of these tensors of f.
func (k *Kind) newLoader(ctx context.Context, f *safetensors.File, d device.Device, infos []safetensors.Info) (*loader, error) {
	g, err := k.gpuOf(d)
	if err != nil {
		return nil, err
	}
	s, err := g.streamFor(device.StreamFrom(ctx, d))
	if err != nil {
		return nil, err
	}
	total := 0
	for _, info := range infos {
		total += info.ByteSize()
	}
	return &loader{kind: k, gpu: g, stream: s, file: f, size: min(total, loadChunk)}, nil
}

// load returns one tensor of the file. Its last copies are enqueued.
func (l *loader) load(ctx context.Context, info safetensors.Info) (*tensor.Tensor, error) {
	dtype, err := info.Type()
	if err != nil {
		return nil, err
	}
	x, err := l.kind.Kernels().Alloc(ctx, l.gpu.device, dtype, info.Shape...)
	if err != nil {
		return nil, err
	}
	if err := l.fill(ctx, x, info.Name); err != nil {
		x.Release()
		return nil, err
	}
	return x, nil
}

// fill enqueues the copies of the bytes of the tensor with that name to x.
func (l *loader) fill(ctx context.Context, x *tensor.Tensor, name string) error {
	to, err := x.Buffer()
	if err != nil {
		return err
	}
	for at := 0; at < to.Len(); {
		p, err := l.space(ctx, to.Len()-at)
		if err != nil {
			return err
		}
		if err := l.file.ReadAt(p, name, at); err != nil {
			return err
		}
		if err := l.kind.Copy(to.Slice(at, len(p)), device.Bytes(p).WithStream(l.stream)); err != nil {
			return err
		}
		at += len(p)
	}
	return nil
}

// space returns page-locked memory of at least one and at most n bytes. It waits until the copies out
// of that memory are complete.
func (l *loader) space(ctx context.Context, n int) ([]byte, error) {
	if l.blocks[l.current] != nil && l.used == l.size {
		ev, err := l.stream.Record()
		if err != nil {
			return nil, err
		}
		l.copied[l.current] = ev
		l.current, l.used = 1-l.current, 0
	}
	if ev := l.copied[l.current]; ev != nil {
		if err := ev.Synchronize(ctx); err != nil {
			return nil, err
		}
		ev.Release()
		l.copied[l.current] = nil
	}
	if l.blocks[l.current] == nil {
		if err := l.gpu.enter(); err != nil {
			return nil, err
		}
		defer l.gpu.leave()
		b, err := l.gpu.pinned.take(l.size)
		if err != nil {
			return nil, err
		}
		l.blocks[l.current] = b
	}
	p := l.blocks[l.current].data[l.used:l.size]
	p = p[:min(n, len(p))]
	l.used += len(p)
	return p, nil
}

// close frees the blocks after the copies.
func (l *loader) close() error {
	if err := l.gpu.enter(); err != nil {
		return err
	}
	defer l.gpu.leave()
	for i, b := range l.blocks {
		if b != nil {
			l.gpu.pinned.put(b, l.stream.handle)
		}
		if ev := l.copied[i]; ev != nil {
			ev.Release()
		}
	}
	return nil
}
