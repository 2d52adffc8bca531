package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// maxStreams bounds the streams of a gpuArena.
const maxStreams = 16

// gpuArena is the memory on a GPU. Slot i is valid on stream i modulo the number of streams, so that
// messages in flight do not wait for each other.
type gpuArena struct {
	contents
	kind    *cudaipc.Kind
	device  device.Device
	target  device.Device // of the peer's memory
	streams []device.Stream
	size    int
	slots   []device.Buffer
	owner   device.Buffer // page-locked memory of one slot
	host    []byte        // the bytes of owner
}

// newMemory returns memory of s for the messages of one end of a pipe: of the server if server is true,
// and of the client otherwise. kind is that of the GPUs of s, nil for host memory. The error is that of
// creating streams.
func newMemory(s Spec, kind *cudaipc.Kind, server bool) (memory, error) {
	if kind == nil {
		return &arena{buffers: s.withDefaults().Buffers, contents: s.contents()}, nil
	}
	return newGPUArena(s, kind, server)
}

// newGPUArena is newMemory for GPUs.
func newGPUArena(s Spec, kind *cudaipc.Kind, server bool) (*gpuArena, error) {
	s = s.withDefaults()
	a := &gpuArena{contents: s.contents(), kind: kind, device: s.Device, target: s.ServerDevice}
	if server {
		a.device, a.target = a.target, a.device
	}
	for range min(s.Depth, maxStreams) {
		stream, err := kind.NewStream(a.device)
		if err != nil {
			return nil, err
		}
		a.streams = append(a.streams, stream)
	}
	return a, nil
}

func (a *gpuArena) stream(i int) device.Stream { return a.streams[i%len(a.streams)] }

// resize zeroes the slots 0 to slots-1, and allocates them first if there are fewer or their size
// differs. It waits for the GPU. The error is that of the device kind.
func (a *gpuArena) resize(slots, size int) error {
	if size == 0 {
		a.release()
		a.slots = make([]device.Buffer, slots)
		return nil
	}
	if slots > len(a.slots) || size != a.size {
		if err := a.allocate(slots, size); err != nil {
			return err
		}
	}
	clear(a.host)
	return a.eachSlot(slots, func(i int) error { return a.kind.Copy(a.slots[i], device.Bytes(a.host)) })
}

func (a *gpuArena) allocate(slots, size int) error {
	a.release()
	var err error
	if a.owner, err = a.kind.AllocHost(size, a.streams[0]); err != nil {
		return err
	}
	a.host, _ = a.owner.Contiguous()
	for i := range slots {
		b, err := a.kind.Alloc(a.device, size, a.stream(i))
		if err != nil {
			return err
		}
		a.slots = append(a.slots, b)
	}
	a.size = size
	return nil
}

// eachSlot calls work with the indices 0 to slots-1, and waits for the GPU after each call.
func (a *gpuArena) eachSlot(slots int, work func(i int) error) error {
	if a.size == 0 {
		return nil
	}
	defer runtime.KeepAlive(a.owner)
	for i := range slots {
		if err := work(i); err != nil {
			return err
		}
		if err := a.settle(i); err != nil {
			return err
		}
	}
	return nil
}

// settle blocks until the stream of slot i has no work left, and returns the error of that work.
func (a *gpuArena) settle(i int) error { return a.stream(i).Synchronize(context.Background()) }

// settleAll blocks until the work on the first n slots of m is done, and returns the errors of that work.
func settleAll(m memory, n int) error {
	var all []error
	for i := range min(n, maxStreams) { // further slots share their streams
		all = append(all, m.settle(i))
	}
	return errors.Join(all...)
}

// release frees all slots. The arena can be used again after resize.
func (a *gpuArena) release() {
	a.slots, a.owner, a.host, a.size = nil, device.Buffer{}, nil, 0
}

// message returns a message whose only tensor is slot i, or an empty message if slots have a size of 0.
// If named is true the tensor names the peer's GPU as its target device.
func (a *gpuArena) message(i int, named bool) *pipe.Message {
	m := &pipe.Message{}
	if a.size == 0 {
		return m
	}
	t := pipe.Tensor{Buffer: a.slots[i]}
	if named {
		t.TargetDevice = a.target
	}
	m.Tensors = []pipe.Tensor{t}
	return m
}

// allocation returns slot i as the destination of a message that has one tensor, or an empty allocation
// if slots have a size of 0.
func (a *gpuArena) allocation(i int) pipe.Allocation {
	if a.size == 0 {
		return pipe.Allocation{}
	}
	return pipe.Allocation{Tensors: []device.Buffer{a.slots[i]}}
}

// fill writes the contents of the messages with the numbers first, first+1 and so on into the slots 0 to
// slots-1. It waits for the GPU. The error is that of the device kind.
func (a *gpuArena) fill(slots, first int) error {
	g := a.generator()
	return a.eachSlot(slots, func(i int) error {
		g.fill(a.host, first+i)
		return a.kind.Copy(a.slots[i], device.Bytes(a.host))
	})
}

// check compares the slots 0 to slots-1 with the contents that fill writes with the same arguments. It
// waits for the GPU. The error matches ErrCorrupt and names the first difference, or is that of the
// device kind.
func (a *gpuArena) check(slots, first int) error {
	g := a.generator()
	return a.eachSlot(slots, func(i int) error {
		err := errors.Join(a.kind.Copy(device.Bytes(a.host), a.slots[i]), a.settle(i))
		if err != nil {
			return err
		}
		if at := g.difference(a.host, first+i); at >= 0 {
			return fmt.Errorf("%w: message %d differs in the 8 bytes at %d", ErrCorrupt, first+i, at)
		}
		return nil
	})
}
