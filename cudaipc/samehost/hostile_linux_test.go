package samehost_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// hostile is a factory of channels that send frames of a test in place of tensors.
type hostile struct {
	channel.Factory
	node *node
}

// New implements [channel.Factory].
func (f hostile) New(_ context.Context, link channel.Link, _ channel.Role) (channel.Channel, error) {
	return &hostileEnd{f.node, link}, nil
}

type hostileEnd struct {
	node *node
	link channel.Link
}

// Send implements [channel.Channel].
func (e *hostileEnd) Send(id uint64, src device.Buffer, done func(error)) {
	frames := e.node.route.frames(e.node, id, src.Len())
	go func() {
		var err error
		for _, f := range frames {
			err = errors.Join(err, e.link.Conns[0].WriteFrames(transport.Frame{f}))
		}
		done(err)
	}()
}

// Recv implements [channel.Channel].
func (e *hostileEnd) Recv(_ uint64, _ device.Buffer, done func(error)) { go done(channel.ErrClosed) }

// Abort implements [channel.Channel].
func (e *hostileEnd) Abort(uint64, error) {}

// Close implements [channel.Channel].
func (e *hostileEnd) Close(error) error { return channel.CloseLink(e.link) }

// Fits, Discard and EndRecv implement [channel.Compatible].
func (e *hostileEnd) Fits(device.Buffer) error                  { return nil }
func (e *hostileEnd) Discard(_ uint64, _ int, done func(error)) { go done(channel.ErrClosed) }
func (e *hostileEnd) EndRecv()                                  {}

// The kind of a description in the native dialect, and the offsets of its fields.
const (
	describe          = 1
	atSize, atOffset  = 16, 24
	atMemory, atEvent = 32, 96
)

// description returns a valid description of size bytes that begin 100 bytes before the end of an
// allocation of 2 MiB.
func (n *node) description(id uint64, size int) []byte {
	b := n.wrap(2<<20, n.stream(gpu(0)))
	f := binary.LittleEndian.AppendUint64([]byte{describe, 0, 0, 0, 0, 0, 0, 0}, id)
	f = binary.LittleEndian.AppendUint64(f, uint64(size))
	f = binary.LittleEndian.AppendUint64(f, 2<<20-100)
	memory, event := n.handles(b)
	return append(append(f, memory[:]...), event[:]...)
}

// handles returns handles of the memory of b and of a new event.
func (n *node) handles(b device.Buffer) (memory, event driver.IPCHandle) {
	n.with(gpu(0), func(d driver.Driver) {
		e, err := d.NewEvent(driver.EventDisableTiming | driver.EventInterprocess)
		require.NoError(n, err)
		event, err = d.EventHandle(e)
		require.NoError(n, err)
		memory, err = d.MemHandle(ptr(b))
		require.NoError(n, err)
	})
	return memory, event
}

// changed returns a description with other bytes at an offset.
func changed(at int, with ...byte) func(n *node, id uint64, size int) [][]byte {
	return func(n *node, id uint64, size int) [][]byte {
		f := n.description(id, size)
		copy(f[at:], with)
		return [][]byte{f}
	}
}

var garbage = bytes.Repeat([]byte{0x5a}, 64)

// hostileCase is what a hostile process sends in place of a tensor of 100 bytes.
type hostileCase struct {
	name   string
	frames func(n *node, id uint64, size int) [][]byte
	want   error // that Read matches
	alone  bool  // the pipe stays open
}

var hostileDirect = []hostileCase{
	{"too long", changed(atSize, 101), pipe.ErrProtocol, false},
	{"too short", changed(atSize, 99), pipe.ErrProtocol, false},
	{"one byte beyond the allocation", changed(atOffset, 0x9d), pipe.ErrProtocol, false},
	{"far beyond the allocation", changed(atOffset, garbage[:8]...), pipe.ErrProtocol, false},
	{"no memory", changed(atMemory, garbage...), driver.ResultInvalidValue, true},
	{"no event", changed(atEvent, garbage...), driver.ResultInvalidValue, true},
	{"the handle of the memory for the event", func(n *node, id uint64, size int) [][]byte {
		f := n.description(id, size)
		copy(f[atEvent:], f[atMemory:atEvent])
		return [][]byte{f}
	}, driver.ResultInvalidValue, true},
	{"a kind that is unknown", changed(0, 9), pipe.ErrProtocol, false},
	{"reserved bytes", changed(3, 1), pipe.ErrProtocol, false},
	{"twice", func(n *node, id uint64, size int) [][]byte {
		f := n.description(id, size)
		return [][]byte{f, f}
	}, pipe.ErrProtocol, false},
	{"half of a description", func(n *node, id uint64, size int) [][]byte {
		return [][]byte{n.description(id, size)[:80]}
	}, pipe.ErrProtocol, false},
	{"a long frame", func(n *node, id uint64, size int) [][]byte {
		return [][]byte{append(n.description(id, size), garbage...)}
	}, pipe.ErrProtocol, false},
	{"an empty frame", func(*node, uint64, int) [][]byte { return [][]byte{nil} }, pipe.ErrProtocol, false},
}

// announcement returns what announces slot of a new outbox, changed by change.
func announcement(change func(d *wire.CUDAIPCDescriptor)) func(n *node, id uint64, size int) [][]byte {
	return func(n *node, _ uint64, _ int) [][]byte {
		b := n.wrap(32<<20, n.stream(gpu(0)))
		memory, event := n.handles(b)
		d := wire.CUDAIPCDescriptor{Outbox: &wire.CUDAIPCOutbox{Process: "hostile", Memory: memory}}
		for range 4 {
			d.Outbox.Events = append(d.Outbox.Events, event)
		}
		change(&d)
		return [][]byte{d.Append(nil)}
	}
}

var hostileStaged = []hostileCase{
	{"a slot beyond the outbox", announcement(func(d *wire.CUDAIPCDescriptor) { d.Slot = 4 }), pipe.ErrProtocol, false},
	{"a slot far beyond the outbox", announcement(func(d *wire.CUDAIPCDescriptor) { d.Slot = 1 << 63 }), pipe.ErrProtocol, false},
	{"more events than slots", announcement(func(d *wire.CUDAIPCDescriptor) {
		d.Slot, d.Outbox.Events = 4, append(d.Outbox.Events, d.Outbox.Events[0])
	}), pipe.ErrProtocol, false},
	{"an outbox that was not described", announcement(func(d *wire.CUDAIPCDescriptor) { d.Outbox = nil }), pipe.ErrProtocol, false},
	{"no memory", announcement(func(d *wire.CUDAIPCDescriptor) { copy(d.Outbox.Memory[:], garbage) }), driver.ResultInvalidValue, false},
	{"no event", announcement(func(d *wire.CUDAIPCDescriptor) { copy(d.Outbox.Events[0][:], garbage) }), driver.ResultInvalidValue, false},
	{"the handle of the memory for an event", announcement(func(d *wire.CUDAIPCDescriptor) { d.Outbox.Events[0] = d.Outbox.Memory }), driver.ResultInvalidValue, false},
	{"garbage", func(*node, uint64, int) [][]byte { return [][]byte{garbage} }, pipe.ErrProtocol, false},
	{"a long frame", func(*node, uint64, int) [][]byte { return [][]byte{make([]byte, 1<<20)} }, pipe.ErrProtocol, false},
	{"an empty frame", func(*node, uint64, int) [][]byte { return [][]byte{nil} }, pipe.ErrProtocol, false},
}

// A hostile sender fails its message, or its pipe, with a typed error. The process serves others.
func TestHostileSender(t *testing.T) {
	inBothForms(t, func(t *testing.T, r route) {
		cases := hostileDirect
		if r.dialect == pipe.DialectCompatible {
			cases = hostileStaged
		}
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) { c.run(t, r) })
		}
	})
}

func (c hostileCase) run(t *testing.T, r route) {
	honest := r
	r.frames = c.frames
	p := r.start(t, nil, func(n *node) {
		s := n.stream(gpu(0))
		if n.Rank == 1 {
			op := n.WriteAsync(n.Context(), message(gpu(0), n.filled(100, s, 7)))
			require.NoError(n, n.WaitFor("failed"))
			n.Abort(nil)
			_ = op.Wait(n.Context())
			n.route = honest
			var err error
			n.pipes, err = honest.newContext(n, cudaipc.NewIPC(n.kind))
			require.NoError(n, err)
			n.dial(n.url)
			n.write(gpu(0), n.filled(100, s, 8))
			return
		}
		n.misuse = "no handle of"
		in, err := n.Next(n.Context())
		if err == nil { // the frame has not been read yet
			err = in.Read(n.Context(), pipe.Allocation{Tensors: []device.Buffer{n.alloc(100, s)}})
		}
		require.ErrorIs(n, err, c.want)
		if c.alone {
			require.NoError(n, n.Err())
		} else {
			<-n.Done()
			require.ErrorIs(n, n.Err(), c.want)
		}
		n.Send("failed")
		n.accept()
		n.requireFilled(n.read(s)[0], 8)
	})
	require.Equal(t, "failed", p.ReadLine(0))
	p.Send(1, "failed")
	p.finish()
}
