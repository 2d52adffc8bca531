package main

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// load makes the messages that a ping sends.
type load struct {
	size, payloads, tensors int
	named                   bool // all tensors name their target device
	chance                  bool // the numbers above are bounds, and metadata is random

	pool    *tensor.Pool
	bytes   *rand.ChaCha8
	numbers *rand.Rand
}

// exchange is one message, what it is known to look like, and memory for its
// echo.
type exchange struct {
	shape      pipe.Descriptor
	sent, back *parcel
}

func newLoad(p *ping) *load {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], p.seed)
	source := rand.NewChaCha8(seed)
	return &load{
		size: int(p.size), payloads: p.payloads, tensors: p.tensors,
		named: p.named, chance: p.check,
		pool:    tensor.NewPool(tensor.PoolOptions{}),
		bytes:   source,
		numbers: rand.New(source),
	}
}

// next makes a message full of random bytes.
func (l *load) next() (*exchange, error) {
	x := &exchange{shape: l.shape()}
	var err error
	if x.sent, err = newParcel(l.pool, &x.shape); err != nil {
		return nil, err
	}
	if x.back, err = newParcel(l.pool, &x.shape); err != nil {
		return nil, err
	}
	for _, s := range x.sent.storages {
		data, err := s.Bytes()
		if err != nil {
			return nil, err
		}
		l.bytes.Read(data) // never fails
	}
	return x, nil
}

// release gives the memory back. Nobody may use it any more.
func (x *exchange) release() {
	x.sent.release()
	x.back.release()
}

// shape decides what the next message looks like.
func (l *load) shape() pipe.Descriptor {
	d := pipe.Descriptor{Metadata: l.metadata()}
	for range l.upTo(l.payloads) {
		d.Payloads = append(d.Payloads, pipe.PayloadDescriptor{Length: l.length(), Metadata: l.metadata()})
	}
	for range l.upTo(l.tensors) {
		d.Tensors = append(d.Tensors, pipe.TensorDescriptor{
			Length: l.length(), SourceDevice: device.CPU(), TargetDevice: l.target(), Metadata: l.metadata(),
		})
	}
	return d
}

func (l *load) upTo(n int) int {
	if l.chance {
		return l.numbers.IntN(n + 1)
	}
	return n
}

// length prefers no order of magnitude, and gives the bounds more than their
// share.
func (l *load) length() int {
	if !l.chance {
		return l.size
	}
	switch l.numbers.IntN(8) {
	case 0:
		return 0
	case 1:
		return l.size
	default:
		return l.numbers.IntN(min(1<<l.numbers.IntN(bits.Len(uint(l.size))+1), l.size) + 1)
	}
}

func (l *load) target() device.Device {
	if l.named || l.chance && l.numbers.IntN(2) == 0 {
		return device.CPU()
	}
	return device.Device{}
}

func (l *load) metadata() []byte {
	if !l.chance {
		return nil
	}
	data := make([]byte, l.numbers.IntN(32))
	l.bytes.Read(data)
	return data
}
