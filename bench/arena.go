package bench

import (
	"encoding/binary"
	"fmt"
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// cacheLine keeps neighbouring messages from sharing one.
const cacheLine = 64

// arena is memory for the messages of a batch, a slot for each: a message is
// sent from one slot and read into another.
type arena struct {
	storage      *tensor.Storage
	data         []byte
	size, stride int
}

// resize makes room for slots of size bytes each, all pages touched. No message
// may use the arena any more.
func (a *arena) resize(slots, size int) error {
	a.size = size
	a.stride = max((size+cacheLine-1)/cacheLine, 1) * cacheLine
	if need := slots * a.stride; need > len(a.data) {
		if err := a.grow(need); err != nil {
			return err
		}
	}
	a.clear(slots)
	return nil
}

// grow gets memory, in huge pages where the system has them.
func (a *arena) grow(need int) error {
	if a.storage != nil {
		a.storage.Release()
	}
	*a = arena{size: a.size, stride: a.stride}
	s, err := tensor.NewPool(tensor.PoolOptions{}).Alloc(need)
	if err != nil {
		return err
	}
	a.storage = s
	a.data, err = s.Bytes()
	return err
}

func (a *arena) slot(i int) []byte { return a.data[i*a.stride : i*a.stride+a.size : i*a.stride+a.size] }

// clear spoils the slots, so that bytes of an earlier batch cannot pass for new
// ones.
func (a *arena) clear(slots int) {
	clear(a.data[:slots*a.stride])
	runtime.KeepAlive(a.storage)
}

// message is the message in a slot.
func (a *arena) message(i int, named bool) *pipe.Message {
	m := &pipe.Message{}
	if a.size == 0 {
		return m
	}
	t := pipe.Tensor{Buffer: device.Bytes(a.slot(i)).WithOwner(a.storage)}
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
	return pipe.Allocation{Tensors: []device.Buffer{device.Bytes(a.slot(i)).WithOwner(a.storage)}}
}

// fill writes into the slots what messages first, first+1 and so on have to say.
func (a *arena) fill(slots, first int) {
	for i := range slots {
		fill(a.slot(i), first+i)
	}
	runtime.KeepAlive(a.storage)
}

// check compares the slots with what fill writes.
func (a *arena) check(slots, first int) error {
	defer runtime.KeepAlive(a.storage)
	for i := range slots {
		if at := difference(a.slot(i), first+i); at >= 0 {
			return fmt.Errorf("%w: message %d differs in the 8 bytes at %d", ErrCorrupt, first+i, at)
		}
	}
	return nil
}

// word is eight bytes of a message, those that start at 8*index. It depends on
// both numbers, so that messages or parts in the wrong place show. The C++ side
// makes the same ones (arena.cc).
func word(number, index uint64) uint64 {
	x := (number+1)*0x9e3779b97f4a7c15 + index*0xbf58476d1ce4e5b9
	return x ^ x>>29
}

func fill(p []byte, number int) {
	n := uint64(number)
	for i := range len(p) / 8 {
		binary.LittleEndian.PutUint64(p[8*i:], word(n, uint64(i)))
	}
	if rest := p[len(p)&^7:]; len(rest) > 0 {
		copy(rest, tail(n, len(p)))
	}
}

// difference is where p differs from what fill writes, -1 if nowhere.
func difference(p []byte, number int) int {
	n := uint64(number)
	for i := range len(p) / 8 {
		if binary.LittleEndian.Uint64(p[8*i:]) != word(n, uint64(i)) {
			return 8 * i
		}
	}
	if at := len(p) &^ 7; string(p[at:]) != string(tail(n, len(p))) {
		return at
	}
	return -1
}

// tail is what a message of length bytes has behind its last whole word.
func tail(number uint64, length int) []byte {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], word(number, uint64(length/8)))
	return b[:length%8]
}
