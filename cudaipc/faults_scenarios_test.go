package cudaipc

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
	"github.com/tensorpipe-go/tensorpipe/tensor/safetensors"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// faultRun is a Kind on which a scenario runs while a call of the driver fails.
type faultRun struct {
	*testing.T
	*Kind
	file *safetensors.File
	want map[string]*tensor.Tensor // in file
}

var errWrongBytes = errors.New("wrong bytes without an error")

// faultScenario is a use of a Kind that returns the error of a call, or errWrongBytes.
type faultScenario struct {
	name   string
	points int // at which each function fails, at most
	run    func(r faultRun) error
}

var faultScenarios = []faultScenario{
	{"memory and copies", 30, faultRun.copies},
	{"cuda_ipc", 30, func(r faultRun) error { return r.move(NewIPC(r.Kind), true, 2000) }},
	{"cuda_ipc, memory of the application", 30, faultRun.moveWrapped},
	{"cuda_ipc, compatible", 2, func(r faultRun) error { return r.move(NewIPC(r.Kind), false, slotSize+2000) }},
	{"cuda_basic", 3, func(r faultRun) error { return r.move(NewBasic(r.Kind, xth.New()), true, nativeChunk+2000) }},
	{"cuda_basic, compatible", 3, func(r faultRun) error { return r.move(NewBasic(r.Kind, xth.New()), false, compatChunk+2000) }},
	{"files", 3, faultRun.load},
	{"kernels", 10, faultRun.compute},
}

// Name returns the name of the test.
func (r faultRun) Name() string { return r.T.Name() }

// check returns an error unless b has the bytes want.
func (r faultRun) check(b device.Buffer, want []byte) error {
	got := make([]byte, len(want))
	if err := r.Copy(device.Bytes(got), b); err != nil {
		return err
	}
	if err := b.Stream().Synchronize(r.Context()); err != nil {
		return err
	}
	if !bytes.Equal(want, got) {
		return errWrongBytes
	}
	return nil
}

// tensor returns new memory of the GPU with that index that has the bytes data, valid on a new stream.
func (r faultRun) tensor(index int, data []byte) (device.Buffer, error) {
	s, err := r.NewStream(device.Device{Kind: Name, Index: index})
	if err != nil {
		return device.Buffer{}, err
	}
	b, err := r.Alloc(s.Device(), len(data), s)
	if err != nil {
		return b, err
	}
	return b, r.Copy(b, device.Bytes(data))
}

// copies copies between two GPUs and page-locked memory, and frees memory that two streams have used.
func (r faultRun) copies() error {
	want := pattern(1, 5000)
	near, err := r.tensor(0, want)
	if err != nil {
		return err
	}
	far, err := r.tensor(1, pattern(2, 5000))
	if err != nil {
		return err
	}
	locked, err := r.AllocHost(5000, far.Stream())
	if err != nil {
		return err
	}
	if err := cmp.Or(r.Copy(far, near), r.Copy(locked, far), r.Copy(near, locked), r.check(near, want)); err != nil {
		return err
	}
	s, err := r.NewStream(near.Device())
	if err != nil {
		return err
	}
	if err := cmp.Or(r.RecordStream(near, s.(*Stream)), r.CheckIPC(near.Device())); err != nil {
		return err
	}
	memory(near).release()
	if near, err = r.tensor(0, want); err != nil {
		return err
	}
	return cmp.Or(r.check(near, want), r.Trim(near.Device()))
}

// move moves tensors of size bytes between two GPUs through a channel of f.
func (r faultRun) move(f channel.Factory, native bool, size int) error {
	src, err := r.tensor(0, pattern(1, size))
	if err != nil {
		return err
	}
	return r.moveFrom(src, pattern(1, size), f, native)
}

// moveWrapped moves memory of the application, which has a handle and then has none.
func (r faultRun) moveWrapped() error {
	const size = 1000
	s, err := r.NewStream(device.Device{Kind: Name})
	if err != nil {
		return err
	}
	g := s.(*Stream).gpu
	if err := g.enter(); err != nil {
		return err
	}
	p, err := r.Driver().Alloc(size)
	g.leave()
	if err != nil {
		return err
	}
	unmapped := func() error { // after the channels have tried to
		for _, other := range r.gpus {
			other.background.Wait()
		}
		return r.CheckFree(p)
	}
	defer func() {
		for errors.Is(unmapped(), faultResult) { // once at most
		}
		if errors.Is(unmapped(), ErrMapped) {
			return
		}
		for g.enter() != nil { // fails once at most
		}
		_ = r.Driver().Free(p)
		g.leave()
	}()
	b, err := r.Wrap(p, size, s.(*Stream))
	if err != nil {
		return err
	}
	if err := r.Copy(b, device.Bytes(pattern(1, size))); err != nil {
		return err
	}
	if err := r.moveFrom(b, pattern(1, size), NewIPC(r.Kind), true); err != nil {
		return err
	}
	if err := unmapped(); err != nil && !errors.Is(err, ErrMapped) {
		return err
	}
	return s.Synchronize(r.Context())
}

// moveFrom moves src, which has the bytes want, to another GPU, twice.
func (r faultRun) moveFrom(src device.Buffer, want []byte, f channel.Factory, native bool) (err error) {
	dst, err := r.tensor(1, pattern(9, len(want)))
	if err != nil {
		return err
	}
	var ends [2]channel.Channel
	broken := make(chan error, 2)
	defer func() { // an end may fail when its part of a tensor is done: then only Broken has the error
		for _, end := range ends {
			if end != nil {
				_ = end.Close(nil)
			}
		}
		for err != nil && len(broken) > 0 {
			err = errors.Join(err, <-broken)
		}
	}()
	near, far := connectedConns(r.T, f.Connections(native))
	for i, conns := range [][]transport.Conn{near, far} {
		link := channel.Link{
			Native: native, Conns: conns, Remote: NewIPC(r.Kind).DeviceDescriptors(),
			Peer: "peer", Broken: func(err error) { broken <- err }, Logger: slog.New(slog.DiscardHandler),
		}
		if ends[i], err = f.New(r.Context(), link, channel.Role(i)); err != nil {
			for _, c := range far {
				_ = c.Close()
			}
			break
		}
	}
	for id := range uint64(2) {
		if err == nil {
			err = exchangeOnce(ends[0], ends[1], id, src, dst)
		}
	}
	if err != nil {
		return err
	}
	return r.check(dst, want)
}

// exchangeOnce moves src to dst, and closes both ends after an error.
func exchangeOnce(from, to channel.Channel, id uint64, src, dst device.Buffer) (err error) {
	done := make(chan error, 2)
	to.Recv(id, dst, func(err error) { done <- err })
	from.Send(id, src, func(err error) { done <- err })
	for range 2 {
		if e := <-done; e != nil {
			err = errors.Join(err, e)
			_ = from.Close(err)
			_ = to.Close(err)
		}
	}
	return err
}

// load loads a file.
func (r faultRun) load() error {
	got, err := r.LoadTensors(r.Context(), r.file, device.Device{Kind: Name})
	if err != nil {
		return err
	}
	for name, x := range r.want {
		w, err := x.Storage().Bytes()
		require.NoError(r, err)
		b, err := got[name].Buffer()
		if err == nil && len(w) > 0 {
			err = r.check(b, w)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// compute adds tensors on a GPU.
func (r faultRun) compute() error {
	k, ctx := r.Kernels(), r.Context()
	var all [2]*tensor.Tensor
	for i := range all {
		var err error
		if all[i], err = k.Alloc(ctx, device.Device{Kind: Name}, tensor.F32, 10); err != nil {
			return err
		}
		if err := k.Fill(ctx, all[i], ops.Int(1)); err != nil {
			return err
		}
	}
	if err := k.Add(ctx, all[0], all[0], all[1], ops.Int(1)); err != nil {
		return err
	}
	b, err := all[0].Buffer()
	if err != nil {
		return err
	}
	return r.check(b, bytes.Repeat([]byte{0, 0, 0, 0x40}, 10)) // 2.0
}
