package bench

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// arena is memory for the messages of a batch, a slot for each: a message is
// sent from one slot and read into another.
type arena struct {
	buffers string // as in Spec
	contents
	pool   *tensor.Pool
	size   int
	owners []*tensor.Storage // of each slot
	slots  [][]byte
}

// resize makes room for slots of size bytes each, all pages touched. No message
// may use the arena any more.
func (a *arena) resize(slots, size int) error {
	if slots > len(a.slots) || size != a.size {
		a.release()
		a.size = size
		if err := a.allocate(slots); err != nil {
			return err
		}
	}
	a.clear(slots)
	return nil
}

// release gives the pages back to the system: the next measurement may need as
// many. No message may use the arena any more.
func (a *arena) release() {
	for i, s := range a.owners {
		if i == 0 || s != a.owners[i-1] {
			s.Release()
		}
	}
	a.owners, a.slots = nil, nil
	switch {
	case a.buffers == BuffersDefault:
		debug.FreeOSMemory()
	case a.pool != nil:
		a.pool.Trim()
	}
}

func (a *arena) slot(i int) []byte { return a.slots[i] }

// clear spoils the slots, so that bytes of an earlier batch cannot pass for new
// ones.
func (a *arena) clear(slots int) {
	for _, s := range a.slots[:slots] {
		clear(s)
	}
	runtime.KeepAlive(a.owners)
}

// message is the message in a slot.
func (a *arena) message(i int, named bool) *pipe.Message {
	m := &pipe.Message{}
	if a.size == 0 {
		return m
	}
	t := pipe.Tensor{Buffer: device.Bytes(a.slots[i]).WithOwner(a.owners[i]), Compression: a.compression}
	if named {
		t.TargetDevice = device.CPU()
	}
	m.Tensors = []pipe.Tensor{t}
	return m
}

// room is a slot to read a message into.
func (a *arena) room(i int) pipe.Allocation {
	if a.size == 0 {
		return pipe.Allocation{}
	}
	return pipe.Allocation{Tensors: []device.Buffer{device.Bytes(a.slots[i]).WithOwner(a.owners[i])}}
}

// fill writes into the slots what messages first, first+1 and so on have to say.
func (a *arena) fill(slots, first int) {
	w := a.words()
	for i, s := range a.slots[:slots] {
		w.fill(s, first+i)
	}
	runtime.KeepAlive(a.owners)
}

// check compares the slots with what fill writes.
func (a *arena) check(slots, first int) error {
	defer runtime.KeepAlive(a.owners)
	w := a.words()
	for i, s := range a.slots[:slots] {
		if at := w.difference(s, first+i); at >= 0 {
			return fmt.Errorf("%w: message %d differs in the 8 bytes at %d", ErrCorrupt, first+i, at)
		}
	}
	return nil
}
