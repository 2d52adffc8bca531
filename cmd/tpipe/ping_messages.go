package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"time"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// load generates the messages that a ping sends: equal ones, or random ones for -check.
type load struct {
	size, payloads, tensors int
	named                   bool // all tensors name their target device
	random                  bool // the numbers above are bounds, and metadata is random

	pool    *tensor.Pool
	bytes   *rand.ChaCha8
	numbers *rand.Rand
}

// exchange is one message to send, the descriptor that its echo must have, and the memory for the echo.
type exchange struct {
	shape      pipe.Descriptor
	sent, back *pooledMessage
}

// newGenerator returns a generator of the messages that the flags of p describe. Generators with
// the same flags and seed generate the same messages.
func newGenerator(p *ping) *load {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], p.seed)
	source := rand.NewChaCha8(seed)
	return &load{
		size: int(p.size), payloads: p.payloads, tensors: p.tensors,
		named: p.named, random: p.check,
		pool:    tensor.NewPool(tensor.PoolOptions{}),
		bytes:   source,
		numbers: rand.New(source),
	}
}

// next returns a new exchange: a message of random bytes, the descriptor that its echo must have,
// and memory for the echo. The memory comes from l's pool, and the caller must release the
// exchange. The error is that of the pool.
func (l *load) next() (*exchange, error) {
	x := &exchange{shape: l.shape()}
	var err error
	if x.sent, err = newPooledMessage(l.pool, &x.shape); err != nil {
		return nil, err
	}
	if x.back, err = newPooledMessage(l.pool, &x.shape); err != nil {
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

// release gives the memory of the message and the memory for its echo back to the pool. x must not
// be used afterwards.
func (x *exchange) release() {
	x.sent.release()
	x.back.release()
}

// shape returns a descriptor for a new message, in new memory. All descriptors are equal, unless
// messages are random.
func (l *load) shape() pipe.Descriptor {
	d := pipe.Descriptor{Metadata: l.metadata()}
	for range l.upTo(l.payloads) {
		d.Payloads = append(d.Payloads, pipe.PayloadDescriptor{Length: l.length(), Metadata: l.metadata()})
	}
	for range l.upTo(l.tensors) {
		t := pipe.TensorDescriptor{Length: l.length(), SourceDevice: device.CPU()}
		if l.named || l.random && l.numbers.IntN(2) == 0 {
			t.TargetDevice = device.CPU()
		}
		t.Metadata = l.metadata()
		d.Tensors = append(d.Tensors, t)
	}
	return d
}

// upTo returns a random number from 0 to n if messages are random, and otherwise n.
func (l *load) upTo(n int) int {
	if l.random {
		return l.numbers.IntN(n + 1)
	}
	return n
}

// length returns the length in bytes of a new payload or tensor. It is l.size, unless messages are
// random: then it is a random number from 0 to l.size. All orders of magnitude are equally likely,
// and 0 and l.size are more likely than other numbers.
func (l *load) length() int {
	if !l.random {
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

// metadata returns up to 31 random bytes, in new memory, if messages are random, and otherwise nil.
func (l *load) metadata() []byte {
	if !l.random {
		return nil
	}
	data := make([]byte, l.numbers.IntN(32))
	l.bytes.Read(data)
	return data
}

// pinger makes round trips through a pipe, one at a time. Its user must call stop.
type pinger struct {
	pipe    *pipe.Pipe
	ctx     context.Context
	stop    func()
	timeout time.Duration
	timer   *time.Timer // cancels ctx when a round trip takes longer than timeout
	compare bool        // compare every byte of the echo
}

// newPinger returns a pinger on p. A round trip fails when it takes longer than timeout or when ctx
// ends. If compare is true, the pinger compares every byte of the echoes. The first timeout already
// runs, and the caller must call stop, which does not close p.
func newPinger(ctx context.Context, p *pipe.Pipe, timeout time.Duration, compare bool) *pinger {
	ctx, cancel := context.WithCancelCause(ctx)
	pings := &pinger{pipe: p, ctx: ctx, timeout: timeout, compare: compare}
	pings.timer = time.AfterFunc(timeout, func() {
		cancel(fmt.Errorf("no answer within %s", timeout))
	})
	pings.stop = func() {
		pings.timer.Stop()
		cancel(nil)
	}
	return pings
}

// roundTrip sends the message of x, reads its echo into the memory of x, and returns the time that
// both took. It fails if the echo has another descriptor or, if p.compare is true, other bytes;
// these are compared after the time is taken. After an error the caller must abort the pipe.
func (p *pinger) roundTrip(x *exchange) (time.Duration, error) {
	p.timer.Reset(p.timeout)
	start := time.Now()
	// Write would block until the echo names the target devices, which the echo may
	// do only after its own message was read.
	op := p.pipe.WriteAsync(p.ctx, x.sent.message)
	if err := op.Err(); err != nil {
		return 0, err
	}
	if err := p.receive(x); err != nil {
		p.pipe.Abort(err)
		<-op.Done() // until then the pipe owns the message's memory
		return 0, err
	}
	if err := op.Wait(p.ctx); err != nil {
		return 0, err
	}
	took := time.Since(start)
	if p.compare {
		return took, compareBytes(x.sent, x.back)
	}
	return took, nil
}

// receive waits for the next message and reads it into the memory that x has for the echo. It
// fails, without reading it, if its descriptor is not that of the message sent. Otherwise the error
// is that of the pipe.
func (p *pinger) receive(x *exchange) error {
	in, err := p.pipe.Next(p.ctx)
	if err != nil {
		return err
	}
	if err := compareShape(&x.shape, in.Descriptor()); err != nil {
		return fmt.Errorf("%s is not an echo: %w", p.pipe.Peer(), err)
	}
	return in.Read(p.ctx, x.back.memory)
}

// compareShape returns nil if back, the descriptor of an echo, is equal to sent, the descriptor of
// the message: in its metadata and in the number, lengths, metadata and devices of payloads and
// tensors. Otherwise it returns an error that describes the first difference.
func compareShape(sent, back *pipe.Descriptor) error {
	if len(back.Payloads) != len(sent.Payloads) || len(back.Tensors) != len(sent.Tensors) {
		return fmt.Errorf("%d payloads and %d tensors came back, sent were %d and %d",
			len(back.Payloads), len(back.Tensors), len(sent.Payloads), len(sent.Tensors))
	}
	if !bytes.Equal(sent.Metadata, back.Metadata) {
		return fmt.Errorf("metadata %q came back, sent was %q", shorten(back.Metadata), shorten(sent.Metadata))
	}
	for i, p := range sent.Payloads {
		if err := comparePart(p.Length, back.Payloads[i].Length, p.Metadata, back.Payloads[i].Metadata); err != nil {
			return fmt.Errorf("payload %d: %w", i, err)
		}
	}
	for i, t := range sent.Tensors {
		b := back.Tensors[i]
		err := comparePart(t.Length, b.Length, t.Metadata, b.Metadata)
		if err == nil && (t.SourceDevice != b.SourceDevice || t.TargetDevice != b.TargetDevice) {
			err = fmt.Errorf("it came back from %s for %s, sent was from %s for %s",
				b.SourceDevice, b.TargetDevice, t.SourceDevice, t.TargetDevice)
		}
		if err != nil {
			return fmt.Errorf("tensor %d: %w", i, err)
		}
	}
	return nil
}

// comparePart returns nil if a payload or tensor of an echo has the same length and metadata as the
// one sent. Otherwise it returns an error that describes the difference. sent and back are the
// lengths.
func comparePart(sent, back int, sentMetadata, backMetadata []byte) error {
	if sent != back {
		return fmt.Errorf("%d bytes came back, sent were %d", back, sent)
	}
	if !bytes.Equal(sentMetadata, backMetadata) {
		return fmt.Errorf("metadata %q came back, sent was %q", shorten(backMetadata), shorten(sentMetadata))
	}
	return nil
}

// compareBytes returns nil if the payloads and tensors of two messages have the same bytes, and
// otherwise an error that describes the first difference. The two messages must have equal
// descriptors.
func compareBytes(sent, back *pooledMessage) error {
	for i, p := range sent.memory.Payloads {
		if err := compareData(p, back.memory.Payloads[i]); err != nil {
			return fmt.Errorf("payload %d: %w", i, err)
		}
	}
	for i, t := range sent.memory.Tensors {
		s, _ := t.Contiguous()
		b, _ := back.memory.Tensors[i].Contiguous()
		if err := compareData(s, b); err != nil {
			return fmt.Errorf("tensor %d: %w", i, err)
		}
	}
	return nil
}

// compareData returns nil if sent and back, which must have the same length, are equal. Otherwise
// it returns an error with the first byte that differs.
func compareData(sent, back []byte) error {
	if bytes.Equal(sent, back) {
		return nil
	}
	for i, b := range sent {
		if b != back[i] {
			return fmt.Errorf("byte %d of %d came back as %#02x, sent was %#02x", i, len(sent), back[i], b)
		}
	}
	return nil
}

// shorten returns the first 40 bytes of p, or all if p has fewer, for an error message. The result
// shares p's memory.
func shorten(p []byte) []byte { return p[:min(len(p), 40)] }
