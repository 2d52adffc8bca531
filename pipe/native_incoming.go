package pipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/compress"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
)

// nativeIncoming is an Incoming of the native dialect. What travels inside the
// message is in frame from the start.
type nativeIncoming struct {
	Incoming
	in     *nativeInbox
	number uint64 // its place among all messages, from 0
	frame  []byte
	body   []byte         // of frame; nil of a message that came early
	parts  native.Message // decoded, within frame
	large  int            // parts that wait for memory
	packed int            // parts that are compressed
	held   int            // its share of the read-ahead bytes
	lent   bool           // a device may still read frame

	// The following are of a message that came early, and guarded by
	// messageReader.mu.
	whole  int           // its inline bytes
	coming int           // those that are still in the stream
	into   [][]byte      // where they go, nil if that is inline
	inline []byte        // where they go unless Read comes first
	here   chan struct{} // made by who waits for them, closed when all are here
	room   [][]byte      // memory for into

	claimed  atomic.Bool // someone reads or discards it
	finished atomic.Bool // and has done so

	// The following are guarded by nativeInbox.mu.
	aborted error           // why the peer gave it up
	moving  []nativeArrival // parts that a channel has
	left    int             // of moving, not done
	err     error           // the first error of a part
	untold  bool            // a part has failed, and why is said elsewhere
	told    chan struct{}   // made by who waits for that, closed with aborted
	done    chan struct{}   // closed when left is 0
}

// nativeArrival is a part on its way into memory.
type nativeArrival struct {
	id      uint64
	channel channel.Channel
}

// newIncoming returns an empty message, perhaps one that was released.
func (p *nativePipe) newIncoming() *nativeIncoming {
	in := p.context.incoming.Get().(*nativeIncoming)
	in.in, in.Incoming.pipe, in.of = &p.in, p.Pipe, in
	return in
}

// What a part takes beside its bytes of the frame, once that was taken apart.
const (
	payloadHeld = 104
	tensorHeld  = 200
)

// cost is the memory that a message takes.
func (in *nativeIncoming) cost() int {
	body := in.body
	if body == nil {
		body = in.frame
	}
	payloads, tensors := native.CountParts(body)
	return messageOverhead + len(in.frame) + payloads*payloadHeld + tensors*tensorHeld
}

// decode takes the body of the frame apart and checks it against the limits and
// the channels of the pipe.
func (in *nativeIncoming) decode() error {
	limits := &in.Incoming.pipe.context.limits
	if err := in.parts.Decode(in.body, limits.native()); err != nil {
		return nativeError(err)
	}
	return in.describe(limits)
}

// decodeHead does so for a message of which frame has all but the inline bytes,
// while its body has length.
func (in *nativeIncoming) decodeHead(length uint32) error {
	limits := &in.Incoming.pipe.context.limits
	if err := in.parts.DecodeHead(in.frame, length, limits.native()); err != nil {
		return nativeError(err)
	}
	in.whole = int(length) - len(in.frame)
	in.coming = in.whole
	return in.describe(limits)
}

func (in *nativeIncoming) describe(limits *Limits) error {
	d := &in.desc
	d.Metadata = in.parts.Metadata
	d.setTimeLeft(in.parts.Deadline)
	if err := cmp.Or(in.describePayloads(limits), in.describeTensors(limits)); err != nil {
		return err
	}
	if n := d.Bytes(); n > limits.MessageBytes {
		return protocolError("%w", limitError("message", uint64(n), uint64(limits.MessageBytes)))
	}
	return nil
}

func (in *nativeIncoming) describePayloads(limits *Limits) error {
	d := &in.desc
	d.Payloads = slices.Grow(d.Payloads, len(in.parts.Payloads))
	for k := range in.parts.Payloads {
		part := &in.parts.Payloads[k]
		if part.Length > uint64(limits.PayloadBytes) {
			return protocolError("%w", limitError("payload", part.Length, uint64(limits.PayloadBytes)))
		}
		if err := in.checkCodec(part.Codec); err != nil {
			return protocolError("payload %d: %w", k, err)
		}
		d.Payloads = append(d.Payloads, PayloadDescriptor{Length: int(part.Length), Metadata: part.Metadata})
		in.count(part.Inline)
	}
	return nil
}

func (in *nativeIncoming) describeTensors(limits *Limits) error {
	d := &in.desc
	d.Tensors = slices.Grow(d.Tensors, len(in.parts.Tensors))
	for k := range in.parts.Tensors {
		part := &in.parts.Tensors[k]
		if part.Length > uint64(limits.TensorBytes) {
			return protocolError("%w", limitError("tensor", part.Length, uint64(limits.TensorBytes)))
		}
		d.Tensors = append(d.Tensors, TensorDescriptor{
			Length: int(part.Length), SourceDevice: part.Source, TargetDevice: part.Target, Metadata: part.Metadata,
		})
		if err := in.Incoming.pipe.checkArrival(&d.Tensors[k]); err != nil {
			return protocolError("tensor %d: %w", k, err)
		}
		if err := in.checkTensorCodec(part); err != nil {
			return protocolError("tensor %d: %w", k, err)
		}
		in.count(part.Inline)
	}
	return nil
}

func (in *nativeIncoming) count(inline bool) {
	if !inline {
		in.large++
	}
}

func (in *nativeIncoming) read(ctx context.Context, a Allocation) error {
	if ctx.Err() != nil {
		return in.errorFor(context.Cause(ctx))
	}
	if in.large > 0 {
		if err := in.in.pipe.control.awaitRoom(ctx); err != nil {
			return in.errorFor(err)
		}
	}
	if err := in.checkMemory(a); err != nil {
		return in.errorFor(err)
	}
	if !in.claim() {
		return in.errorFor(ErrAlreadyRead)
	}
	err := in.readAll(ctx, a)
	in.in.pipe.control.noteRead(in.number)
	in.finish()
	if err != nil {
		return in.errorFor(err)
	}
	in.in.traffic.add(in.desc.Bytes())
	in.countSavings()
	return nil
}

func (in *nativeIncoming) readAll(ctx context.Context, a Allocation) error {
	if in.whole > 0 {
		if done, err := in.takeInline(ctx, a); done || err != nil {
			return err
		}
	}
	if in.large == 0 {
		return in.unpack(ctx, a)
	}
	if err := in.post(a); err != nil {
		return err
	}
	err := in.unpack(ctx, a)
	if err != nil {
		in.withdraw(err)
	}
	if err := cmp.Or(in.wait(ctx), err); err != nil {
		return err
	}
	return in.unpackLarge(ctx, a)
}

// unpack copies what came inside the message.
func (in *nativeIncoming) unpack(ctx context.Context, a Allocation) error {
	for k := range in.parts.Payloads {
		part := &in.parts.Payloads[k]
		if part.Inline && part.Codec != compress.None {
			if err := in.decompress(ctx, part.Codec, device.Bytes(a.Payloads[k]), part.Data); err != nil {
				return err
			}
		} else if part.Inline {
			copy(a.Payloads[k], part.Data)
		}
	}
	for k := range in.parts.Tensors {
		part := &in.parts.Tensors[k]
		if !part.Inline || part.Length == 0 {
			continue
		}
		var err error
		if part.Codec != compress.None {
			err = in.decompress(ctx, part.Codec, a.Tensors[k], part.Data)
		} else {
			err = in.place(ctx, a.Tensors[k], part.Data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// place copies one tensor to where the application wants it, in the order of
// that memory's stream.
func (in *nativeIncoming) place(ctx context.Context, dst device.Buffer, data []byte) error {
	if p, ok := dst.Contiguous(); ok && dst.Stream() == nil {
		copy(p, data)
		return nil
	}
	if !dst.IsHost() {
		in.lent = true
		return in.Incoming.pipe.context.copyTo(dst, device.Bytes(data))
	}
	if err := awaitStream(ctx, dst); err != nil {
		return err
	}
	return device.CopyHost(dst.WithStream(nil), device.Bytes(data))
}

// awaitStream waits until the host may write to b.
func awaitStream(ctx context.Context, b device.Buffer) error {
	s := b.Stream()
	if s == nil {
		return nil
	}
	ready, err := s.Record()
	if err != nil {
		return err
	}
	return ready.Synchronize(ctx)
}

// post gives the memory of the large parts to their channels, and tells the
// peer about the devices that it left open.
func (in *nativeIncoming) post(a Allocation) error {
	i := in.in
	i.mu.Lock()
	if in.aborted != nil {
		defer i.mu.Unlock()
		return in.aborted
	}
	if i.over {
		defer i.mu.Unlock()
		return i.end
	}
	in.left, in.done = in.large, make(chan struct{})
	i.countReads(1)
	i.mu.Unlock()
	if open := in.openTargets(a); len(open) > 0 {
		i.pipe.control.targets(in.number, open)
	}
	i.recvMu.Lock()
	defer i.recvMu.Unlock()
	for k := range in.parts.Payloads {
		if part := &in.parts.Payloads[k]; !part.Inline {
			in.recv(nil, i.pipe.mover.Lane(payloadLane), k, tail(device.Bytes(a.Payloads[k]), part.Carried()))
		}
	}
	for k := range in.parts.Tensors {
		if part := &in.parts.Tensors[k]; !part.Inline {
			b := tail(a.Tensors[k], part.Carried())
			l := i.pipe.laneFor(b.Device(), part.Source, b.Len())
			in.recv(l, l.channel, k, b)
		}
	}
	return nil
}

func (in *nativeIncoming) openTargets(a Allocation) []device.Device {
	var open []device.Device
	for k := range in.parts.Tensors {
		if part := &in.parts.Tensors[k]; !part.Inline && part.Target.IsZero() {
			open = append(open, a.Tensors[k].Device())
		}
	}
	return open
}

func (in *nativeIncoming) recv(l *lane, c channel.Channel, place int, b device.Buffer) {
	id := transferID(in.Incoming.pipe.peerRole(), in.number, place)
	in.in.mu.Lock()
	in.moving = append(in.moving, nativeArrival{id, c})
	aborted := in.aborted
	in.in.mu.Unlock()
	c.Recv(id, b, func(err error) { in.partDone(l, b.Len(), err) })
	if aborted != nil {
		c.Abort(id, aborted) // the peer's word came before this part did
	}
}

// partDone notes that a channel has let go of a part. That the peer is gone
// shows at the pipe, which then says why; that it gave the part up, it says itself.
func (in *nativeIncoming) partDone(l *lane, n int, err error) {
	conn := "bulk"
	if l != nil {
		conn = "channel " + l.name
	}
	untold := false
	if err != nil {
		err = classifyPart(err)
		untold = isGone(err) || errors.Is(err, ErrClosed) || errors.Is(err, ErrAborted)
		err = in.in.pipe.errorFor("read", conn, err)
	} else if l != nil {
		l.received.add(n)
	}
	i := in.in
	i.mu.Lock()
	defer i.mu.Unlock()
	if err != nil && !untold && in.aborted == nil && in.err == nil {
		in.giveUp(err) // before done: behind it the message may be another one
	}
	in.untold = in.untold || untold
	in.err = cmp.Or(in.err, err)
	if in.left--; in.left == 0 {
		close(in.done)
	}
}

// classifyPart is classify for a part that a channel had to bring. In this dialect
// a peer that gives one up goes on with the others.
func classifyPart(err error) error {
	if errors.Is(err, channel.ErrAborted) && !isGone(err) {
		return fmt.Errorf("%w: %w", ErrAborted, err)
	}
	return classify(midMessage(err))
}

// giveUp makes the channels let go of all parts and tells the peer. It needs
// nativeInbox.mu.
func (in *nativeIncoming) giveUp(cause error) {
	in.in.pipe.control.cancel(in.number)
	in.abort(cause)
}

// withdraw is giveUp on behalf of the caller of Read.
func (in *nativeIncoming) withdraw(cause error) {
	in.in.mu.Lock()
	defer in.in.mu.Unlock()
	in.giveUp(cause)
}

// abort makes the channels let go of all parts. It needs nativeInbox.mu.
func (in *nativeIncoming) abort(cause error) {
	if in.aborted == nil && in.told != nil {
		close(in.told)
	}
	in.aborted = cmp.Or(in.aborted, cause)
	for _, part := range in.moving {
		part.channel.Abort(part.id, cause)
	}
}

// wait returns when all parts have arrived or failed.
func (in *nativeIncoming) wait(ctx context.Context) error {
	select {
	case <-in.done:
	case <-ctx.Done():
		in.withdraw(fmt.Errorf("%w: %w", ErrCancelled, context.Cause(ctx)))
		<-in.done
	}
	in.awaitReason(ctx)
	in.in.mu.Lock()
	err, aborted := in.err, in.aborted
	in.in.mu.Unlock()
	switch {
	case err == nil:
		return nil
	case aborted != nil:
		return aborted
	}
	return cmp.Or(in.in.pipe.Err(), err)
}

// awaitReason waits until it is known why a channel has not brought a part: the
// peer gave the message up, or the pipe is down. Either may be said by another
// connection, and later.
func (in *nativeIncoming) awaitReason(ctx context.Context) {
	told := in.awaitTold()
	if told == nil {
		return
	}
	t := time.NewTimer(2 * goodbyeWait)
	defer t.Stop()
	select {
	case <-told:
	case <-in.in.pipe.down:
	case <-ctx.Done():
	case <-t.C:
	}
}

// awaitTold returns what is closed when the message is given up; nil where
// nothing is to be said any more.
func (in *nativeIncoming) awaitTold() <-chan struct{} {
	in.in.mu.Lock()
	defer in.in.mu.Unlock()
	if !in.untold || in.aborted != nil {
		return nil
	}
	in.told = make(chan struct{})
	return in.told
}

func (in *nativeIncoming) discard(context.Context) error {
	if !in.forgo() {
		return in.errorFor(ErrAlreadyRead)
	}
	in.in.pipe.control.noteRead(in.number)
	return nil
}

// forgo lets the message go by, unless someone has claimed it. It does not count
// as read.
func (in *nativeIncoming) forgo() bool {
	if !in.claim() {
		return false
	}
	in.letGo()
	return true
}

// claim reports whether the message is now the caller's to read or to let go.
func (in *nativeIncoming) claim() bool { return in.claimed.CompareAndSwap(false, true) }

// letGo lets a message go by that the caller has claimed.
func (in *nativeIncoming) letGo() {
	if in.large > 0 {
		in.in.pipe.control.cancel(in.number)
	}
	if in.whole > 0 {
		in.in.reader.forgo(in)
	}
	in.finish()
}

// drop ends a message that the peer gave up before anybody saw it.
func (in *nativeIncoming) drop() {
	in.claimed.Store(true)
	in.in.pipe.control.noteRead(in.number)
	in.finish()
}

// finish notes that nothing more happens to the message. It comes behind
// noteRead: a pipe that waits for reads to close then says all that was read.
func (in *nativeIncoming) finish() {
	if in.large > 0 {
		in.in.mu.Lock()
		delete(in.in.open, in.number)
		if in.done != nil {
			in.in.countReads(-1)
		}
		in.in.mu.Unlock()
	}
	in.finished.Store(true)
}

// Memory that is kept for another frame: of so many bytes, and so many parts.
const (
	keptBytes = 2 * growStep
	keptParts = 64
)

// release empties the message and keeps its memory, unless that is much or a
// device may still read it.
func (in *nativeIncoming) release() {
	if !in.finished.Load() {
		return
	}
	c := in.Incoming.pipe.context
	in.parts.Forget()
	clear(in.room[:cap(in.room)])
	*in = nativeIncoming{
		Incoming: Incoming{desc: in.keptDescriptor()},
		frame:    in.keptFrame(),
		parts:    in.parts,
		room:     in.room[:0],
	}
	c.incoming.Put(in)
}

func (in *nativeIncoming) keptFrame() []byte {
	if in.lent {
		return nil
	}
	return kept(in.frame)
}

// kept is the memory of buf, unless it is much.
func kept(buf []byte) []byte {
	if cap(buf) > keptBytes {
		return nil
	}
	return buf[:0]
}

func (in *nativeIncoming) keptDescriptor() Descriptor {
	if max(cap(in.desc.Payloads), cap(in.desc.Tensors)) > keptParts {
		return Descriptor{}
	}
	return in.desc.emptied()
}
