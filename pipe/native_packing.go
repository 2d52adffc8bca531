package pipe

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/compress"
)

// packing is what has been compressed of one message: for each part its
// compressed form, in pieces, or nil where it travels as it is. A nil packing is
// of a message of which nothing was to be compressed.
type packing struct {
	memory            *compress.Packing
	payloads, tensors [][][]byte
}

func (k *packing) payload(i int) [][]byte {
	if k == nil {
		return nil
	}
	return k.payloads[i]
}

func (k *packing) tensor(i int) [][]byte {
	if k == nil {
		return nil
	}
	return k.tensors[i]
}

func (k *packing) release() {
	if k != nil {
		k.memory.Release()
	}
}

func formLength(form [][]byte) (n uint64) {
	for _, p := range form {
		n += uint64(len(p))
	}
	return n
}

// cost is what a message takes of the budgets at first: what is compressed may
// take as much memory again.
func (o *nativeOutbox) cost(size *sizer) int {
	if !o.pipe.compresses {
		return size.total()
	}
	return addSizes(size.total(), int(size.asked.Bytes))
}

// pack compresses what is to be compressed and gains by it, in the goroutine of
// the writer. Nothing of the message has left.
func (o *nativeOutbox) pack(ctx context.Context, m *Message, size *sizer) (*packing, error) {
	if !o.pipe.compresses || size.asked.Messages == 0 {
		return nil, nil
	}
	k := &packing{
		memory:   o.pipe.context.coders.NewPacking(),
		payloads: make([][][]byte, len(m.Payloads)),
		tensors:  make([][][]byte, len(m.Tensors)),
	}
	if err := o.packAll(ctx, m, k); err != nil {
		k.release()
		return nil, err
	}
	return k, nil
}

func (o *nativeOutbox) packAll(ctx context.Context, m *Message, k *packing) (err error) {
	goOn := func() error {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-o.refused:
			return ErrClosed // or why new messages are refused, which goes before it
		default:
			return m.checkDeadline()
		}
	}
	for i := range m.Payloads {
		p := &m.Payloads[i]
		if p.Compression == CompressionNone {
			continue
		}
		if k.payloads[i], err = k.memory.Add(compress.Codec(p.Compression), [][]byte{p.Data}, goOn); err != nil {
			return err
		}
	}
	for i := range m.Tensors {
		t := &m.Tensors[i]
		if t.Compression == CompressionNone || !o.canPack(t) {
			continue
		}
		if k.tensors[i], err = k.memory.Add(compress.Codec(t.Compression), t.Buffer.AppendSegments(nil), goOn); err != nil {
			return err
		}
	}
	return nil
}

// canPack reports whether a tensor may be compressed: it must be in host memory,
// valid now, and bound for the host.
func (o *nativeOutbox) canPack(t *Tensor) bool {
	b := &t.Buffer
	return b.IsHost() && b.Stream() == nil && o.pipe.staysOnHost(b.Device(), t.TargetDevice, false)
}

// notPacked is the error for a message that was given up while it was being
// compressed.
func (o *nativeOutbox) notPacked(err error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.refusal != nil {
		return o.refusal
	}
	return o.pipe.errorFor("write", "", err)
}

// settleCost gives back what the compressed bytes did not need, and returns the
// message's share of the budgets.
func (o *nativeOutbox) settleCost(size *sizer, k *packing) share {
	room := o.room.shareOf(o.cost(size))
	if k == nil {
		return room
	}
	asked := int(size.asked.Bytes)
	kept := o.room.shareOf(o.cost(size) - asked + min(asked, k.memory.Bytes()))
	o.room.giveBack(share{room.own - kept.own, room.shared - kept.shared})
	return kept
}

// countPacking notes what became of the parts of a message that were to be
// compressed. The scratch frame describes the message.
func (o *nativeOutbox) countPacking(size *sizer, k *packing) {
	plain := size.asked
	count := func(length, form uint64) {
		if form == 0 {
			return
		}
		o.saved.add(length, form)
		plain.Messages--
		plain.Bytes -= length
	}
	if k != nil {
		for i := range o.frame.Payloads {
			count(o.frame.Payloads[i].Length, o.frame.Payloads[i].Form)
		}
		for i := range o.frame.Tensors {
			count(o.frame.Tensors[i].Length, o.frame.Tensors[i].Form)
		}
	}
	o.pipe.plain.addMany(plain)
}

// formBuffer is the compressed form of a part as channels take it. It keeps the
// part's own memory, in which some of it may lie.
func formBuffer(form [][]byte, part device.Buffer) device.Buffer {
	return device.Host(form...).WithOwner(part)
}
