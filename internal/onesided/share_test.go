package onesided_test

import (
	"context"
	"encoding/binary"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/internal/onesided"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// share is a channel for a device kind with streams, between two ends in one process. It moves tensors
// as a channel over CUDA IPC does: the receiver enqueues the copy on its stream, after an event of the
// sender's stream, and neither end waits for a stream.
type share struct {
	kind device.Kind
	hook func(*onesided.Recv) // called by Pull first, if not nil

	acknowledge bool // Config.Acknowledge

	mu   sync.Mutex
	next uint64
	all  map[uint64]*export // as memory handles do, they lead from one end to the other
}

func newShare(kind device.Kind) *share { return &share{kind: kind, all: make(map[uint64]*export)} }

func (f *share) Viable() error { return nil }

func (f *share) DeviceDescriptors() map[device.Device]string {
	out := make(map[device.Device]string)
	for _, d := range f.kind.Devices() {
		out[d] = "share"
	}
	return out
}

func (f *share) CanCommunicate(local, remote string) bool { return local == remote }

func (f *share) Connections(bool) int { return 1 }

func (f *share) New(_ context.Context, link channel.Link, _ channel.Role) (channel.Channel, error) {
	if err := channel.CheckLink(link, 1); err != nil {
		return nil, err
	}
	e := onesided.New(link, onesided.Config{
		Protocol:  shareEnd{f},
		MaxFrame:  25,
		WrapError: func(err error) error { return &channel.Error{Channel: "share", Peer: link.Peer, Err: err} },
		Streams:   true, Acknowledge: f.acknowledge,
	})
	e.Run()
	return e, nil
}

// export is memory of a Send.
type export struct {
	share   *share
	handle  uint64
	src     device.Buffer
	written device.Event // of src's stream, when the tensor was sent

	mu      sync.Mutex
	revoked bool
	copied  device.Event // of the receiver's stream, after its copy
}

// shareEnd is one end.
type shareEnd struct{ *share }

func (p shareEnd) Close() {}

func (p shareEnd) Describe(src device.Buffer) (onesided.Source, error) {
	written, err := src.Stream().Record()
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	o := &export{share: p.share, handle: p.next, src: src, written: written}
	p.all[o.handle] = o
	return o, nil
}

func (p shareEnd) Append(dst []byte, f onesided.Frame) []byte {
	dst = binary.LittleEndian.AppendUint64(append(dst, byte(f.Kind)), f.ID)
	if f.Kind == onesided.Describe {
		o := f.Source.(*export)
		dst = binary.LittleEndian.AppendUint64(dst, o.handle)
		dst = binary.LittleEndian.AppendUint64(dst, uint64(o.src.Len()))
	}
	return dst
}

func (p shareEnd) Decode(_ int, text []byte) (f onesided.Frame, err error) {
	if want := map[onesided.Kind]int{onesided.Describe: 25, onesided.Revoke: 9, onesided.Copied: 9, onesided.Acknowledged: 9}; len(text) != want[onesided.Kind(text[0])] {
		return f, channel.ErrProtocol
	}
	f = onesided.Frame{Kind: onesided.Kind(text[0]), ID: binary.LittleEndian.Uint64(text[1:])}
	if f.Kind == onesided.Describe {
		f.Remote = onesided.Remote{Memory: binary.LittleEndian.Uint64(text[9:]), Size: binary.LittleEndian.Uint64(text[17:]), Pieces: 1}
	}
	return f, nil
}

// Pull implements onesided.Protocol. It enqueues the copy of the shared memory on the stream of
// r.Buf, to run after the sender's work, and records an event after it for the sender. It returns
// the error of r.Stopped if that is not nil, and channel.ErrAborted if the memory was withdrawn. If
// p.hook is set, it calls p.hook first.
func (p shareEnd) Pull(r *onesided.Recv) error {
	if p.hook != nil {
		p.hook(r)
	}
	if err := r.Stopped(); err != nil {
		return err
	}
	p.mu.Lock()
	o := p.all[r.Memory.(uint64)]
	p.mu.Unlock()
	if o == nil {
		return channel.ErrAborted
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.revoked {
		return channel.ErrAborted
	}
	s := r.Buf.Stream()
	if err := s.Wait(o.written); err != nil {
		return err
	}
	if err := p.kind.Copy(r.Buf, o.src.WithStream(nil)); err != nil {
		return err
	}
	var err error
	o.copied, err = s.Record()
	return err
}

// Copied implements onesided.Source. It makes the stream of the source memory wait for the
// receiver's copy.
func (o *export) Copied() error { return o.end() }

// Revoke implements onesided.Source. If the receiver has enqueued its copy, it makes the stream of
// the source memory wait for the copy; otherwise it prevents the copy.
func (o *export) Revoke() { _ = o.end() }

func (o *export) end() error {
	o.share.mu.Lock()
	delete(o.share.all, o.handle)
	o.share.mu.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.revoked = true
	if o.copied == nil {
		return channel.ErrProtocol
	}
	return o.src.Stream().Wait(o.copied)
}

// openEnd returns one end of a channel of f over conn, and a channel that receives the errors
// passed to Link.Broken. The end is closed at the end of the test.
func openEnd(t *testing.T, f *share, conn transport.Conn) (*onesided.Engine, chan error) {
	t.Helper()
	broken := make(chan error, 2)
	ch, err := f.New(t.Context(), channel.Link{
		Native: true, Conns: []transport.Conn{conn}, Peer: "peer",
		Broken: func(err error) { broken <- err }, Logger: slog.New(slog.DiscardHandler),
	}, channel.RoleConnect)
	require.NoError(t, err)
	t.Cleanup(func() { ch.Close(nil) })
	return ch.(*onesided.Engine), broken
}

// open returns both ends of a channel of f over the connected connections near and far, and a
// channel that receives the errors passed to Link.Broken of the second end.
func open(t *testing.T, f *share, near, far transport.Conn) (from, to *onesided.Engine, broken chan error) {
	t.Helper()
	from, _ = openEnd(t, f, near)
	to, broken = openEnd(t, f, far)
	return from, to, broken
}

// alloc returns new memory on the first device of kind, valid on a new stream, on which a copy of
// data into it is enqueued.
func alloc(t *testing.T, kind *delayed.Kind, data string) device.Buffer {
	t.Helper()
	d := kind.Devices()[0]
	s, err := kind.NewStream(d)
	require.NoError(t, err)
	b, err := kind.Alloc(d, len(data), s)
	require.NoError(t, err)
	require.NoError(t, kind.Write(b, []byte(data)))
	return b
}

// contents waits for the work on b's stream and returns a copy of the bytes of b.
func contents(t *testing.T, kind *delayed.Kind, b device.Buffer) string {
	t.Helper()
	p := make([]byte, b.Len())
	require.NoError(t, kind.Read(p, b))
	require.NoError(t, b.Stream().Synchronize(t.Context()))
	return string(p)
}
