package pipe

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

const (
	// controlBuffer is the memory through which control frames are read.
	controlBuffer = 512

	// maxUnsaid bounds the control frames that wait for a peer that does not
	// read them, in bytes, but for those about memory: a Read waits before it
	// says more.
	maxUnsaid = 4 << 20

	// muchUnsaid is how much makes a Read wait, and drops the reasons of ABORTs.
	muchUnsaid = 256 << 10
)

// nativeControl is the control stream: what is said about messages. What is to
// be said waits in unsaid for the writer.
type nativeControl struct {
	pipe   *nativePipe
	stream transport.Stream
	wake   chan struct{} // has a token when there is something to say
	wrote  chan struct{} // closed when nothing more will be said
	ended  chan struct{} // closed when the peer says no more
	confirmer

	sayMu  sync.Mutex
	unsaid []byte
	spare  []byte
	memory int             // bytes of unsaid that are about memory
	room   chan struct{}   // made by awaitRoom, closed when unsaid is being said
	bye    *native.Control // to be said behind all else; nothing new is said
	said   bool            // it has been
	parted bool            // the peer said goodbye
	reason string
}

func (c *nativeControl) init(p *nativePipe) {
	c.pipe = p
	c.wake = make(chan struct{}, 1)
	c.wrote = make(chan struct{})
	c.ended = make(chan struct{})
	c.confirmer.init(c.poke, p.account)
}

// abandon stands in for the loops of a pipe that is not going to start.
func (c *nativeControl) abandon() {
	close(c.ended)
	close(c.wrote)
}

// poke wakes the writer.
func (c *nativeControl) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// ready, targets, abort, cancel and bulk say what native.Control documents.
func (c *nativeControl) ready(lane uint16, id uint64) {
	c.say(&native.Control{Kind: native.Ready, Lane: lane, Number: id})
}

func (c *nativeControl) targets(number uint64, devices []device.Device) {
	c.say(&native.Control{Kind: native.Targets, Number: number, Devices: devices})
}

func (c *nativeControl) abort(number uint64, reason string) {
	c.say(&native.Control{Kind: native.Abort, Number: number, Text: reason})
}

func (c *nativeControl) cancel(number uint64) {
	c.say(&native.Control{Kind: native.Cancel, Number: number})
}

func (c *nativeControl) bulk() { c.say(&native.Control{Kind: native.Bulk}) }

// goodbye says why the pipe ends, behind all else and behind the confirmations
// that are due; no reason means that this end has said all it had to say. Only
// the first one counts.
func (c *nativeControl) goodbye(reason string) {
	c.tellAll()
	c.sayMu.Lock()
	defer c.sayMu.Unlock()
	if c.bye == nil {
		c.bye = &native.Control{Kind: native.Goodbye, Text: reason}
		c.poke()
	}
}

func (c *nativeControl) say(m *native.Control) {
	if !c.put(m) {
		c.pipe.fail(c.pipe.errorFor("connection", "control", protocolError("it does not read what it is told")))
	}
}

// put reports false if too much waits for a peer that does not read.
func (c *nativeControl) put(m *native.Control) bool {
	c.sayMu.Lock()
	defer c.sayMu.Unlock()
	if c.bye != nil {
		return true
	}
	before := len(c.unsaid)
	if before-c.memory > maxUnsaid {
		return false
	}
	if m.Kind == native.Abort && before > muchUnsaid {
		m = &native.Control{Kind: native.Abort, Number: m.Number}
	}
	c.add(m)
	if m.Kind == native.Targets || m.Kind == native.Ready {
		c.memory += len(c.unsaid) - before
	}
	c.poke()
	return true
}

// add puts m into words. The caller holds sayMu.
func (c *nativeControl) add(m *native.Control) {
	before := len(c.unsaid)
	c.unsaid = m.Append(c.unsaid, c.pipe.context.opts.Checksum)
	c.pipe.account.Add(len(c.unsaid) - before)
}

// awaitRoom waits for the peer to hear what it was told. It comes before saying
// much about memory.
func (c *nativeControl) awaitRoom(ctx context.Context) error {
	for {
		room := c.noRoom()
		if room == nil {
			return nil
		}
		select {
		case <-room:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.pipe.down:
			return c.pipe.Err()
		}
	}
}

// noRoom returns nil if there is room, else what is closed when there may be.
func (c *nativeControl) noRoom() <-chan struct{} {
	c.sayMu.Lock()
	defer c.sayMu.Unlock()
	if len(c.unsaid) <= muchUnsaid {
		return nil
	}
	if c.room == nil {
		c.room = make(chan struct{})
	}
	return c.room
}

// write says what there is to say, until the goodbye or the end of the session.
func (c *nativeControl) write() {
	defer close(c.wrote)
	for {
		text, last := c.next()
		if _, err := c.stream.Write(text); err != nil {
			return // the reader says what that means
		}
		c.pipe.account.Release(len(text))
		if last {
			c.stream.CloseWrite()
			return
		}
	}
}

// next waits for something to say, and reports whether it ends with the goodbye.
func (c *nativeControl) next() (text []byte, last bool) {
	for {
		if text, last = c.take(); len(text) > 0 {
			return text, last
		}
		<-c.wake
	}
}

// take returns what there is to say, in memory that is used again when it was
// said, unless that is much.
func (c *nativeControl) take() (text []byte, last bool) {
	c.sayMu.Lock()
	defer c.sayMu.Unlock()
	c.addConfirmations() // here, where no goodbye can come between: it goes behind them
	if c.bye != nil && !c.said {
		c.said = true
		c.add(c.bye)
	}
	text = c.unsaid
	c.unsaid, c.spare, c.memory = c.spare[:0], text, 0
	c.spare = kept(c.spare)
	if c.room != nil {
		close(c.room)
		c.room = nil
	}
	return text, c.said
}

// addConfirmations puts what is known of messages into words. The caller holds sayMu.
func (c *nativeControl) addConfirmations() {
	if n, ok := c.toTell(); ok {
		c.add(&native.Control{Kind: native.HaveRead, Number: n})
	}
	for c.bye == nil {
		n, ok := c.toAsk()
		if !ok {
			return
		}
		c.add(&native.Control{Kind: native.WantRead, Number: n})
	}
}

// read takes what the peer says.
func (c *nativeControl) read() {
	defer close(c.ended)
	src := bufio.NewReaderSize(c.stream, controlBuffer)
	var header [native.HeaderSize]byte
	var body []byte
	var m native.Control
	held := c.pipe.newCharge()
	for {
		err := c.readFrame(src, header[:], &body, &m, &held)
		if err == nil {
			err = c.obey(&m)
		}
		if err == nil {
			body, m = kept(body), native.Control{}
			held.shrink(cap(body))
			continue
		}
		if parted, _ := c.lastWord(); !parted {
			go c.pipe.sessionEnded("control", err)
		}
		return
	}
}

func (c *nativeControl) readFrame(src *bufio.Reader, header []byte, buf *[]byte, m *native.Control, held *charge) error {
	if _, err := io.ReadFull(src, header); err != nil {
		return err
	}
	limits := c.pipe.context.limits.native()
	h, err := native.DecodeControlHeader(header, limits)
	if err != nil {
		return nativeError(err)
	}
	if *buf, err = readOn(src, (*buf)[:0], h.Rest(), held, 0); err != nil {
		return midMessage(err)
	}
	body, err := h.Body(*buf)
	if err == nil {
		*m, err = native.DecodeControl(native.ControlKind(h.Kind), body, limits)
	}
	if err != nil {
		return nativeError(err)
	}
	return nil
}

func (c *nativeControl) obey(m *native.Control) error {
	p := c.pipe
	switch m.Kind {
	case native.WantRead:
		return c.want(m.Number)
	case native.HaveRead:
		c.confirm(m.Number)
	case native.Targets:
		return p.out.resolve(m)
	case native.Abort:
		return p.in.abort(m.Number, m.Text)
	case native.Cancel:
		p.out.giveUp(m.Number)
	case native.Ready:
		p.mover.TakeReady(m.Lane, m.Number)
	case native.Bulk:
		p.bulk.useStream()
	case native.Goodbye:
		c.takeGoodbye(m.Text)
		return io.EOF
	}
	return nil
}

// takeGoodbye notes the peer's goodbye. One with a reason is the end at once;
// else the peer still takes what is small, and wants nothing that is large.
func (c *nativeControl) takeGoodbye(reason string) {
	c.sayMu.Lock()
	c.parted, c.reason = true, reason
	c.sayMu.Unlock()
	end := c.pipe.errorFor("connection", "control", peerClosed(reason))
	if reason != "" {
		c.pipe.fail(end)
		return
	}
	c.pipe.out.refuse(c.pipe.errorFor("write", "control", end))
	c.pipe.out.giveUpAll()
	c.pipe.in.mind() // the peer waits for an answer to the end of its messages
}

// lastWord is the peer's goodbye, if it said one.
func (c *nativeControl) lastWord() (parted bool, reason string) {
	c.sayMu.Lock()
	defer c.sayMu.Unlock()
	return c.parted, c.reason
}

// part waits until the goodbye has reached a peer that does not know yet, which
// then ends the session, or for as long as it is worth.
func (c *nativeControl) part() {
	t := time.NewTimer(goodbyeWait)
	defer t.Stop()
	select {
	case <-c.wrote:
	case <-t.C:
		return
	case <-c.pipe.session.Done():
		return
	}
	select {
	case <-c.ended: // it has said all it had to say
	case <-t.C:
	case <-c.pipe.session.Done():
	}
}

// awaitRead waits until the peer has read a message of this end.
func (c *nativeControl) awaitRead(ctx context.Context, number uint64) error {
	confirmed, err := c.await(ctx, number, c.ended, c.pipe.down)
	p := c.pipe
	switch {
	case confirmed:
		return nil
	case err != nil:
		return p.unconfirmed("", err)
	case p.isClosing():
		return p.unconfirmed("", ErrClosed)
	default:
		return p.unconfirmed("control", p.explain(io.EOF))
	}
}

// abortedError is the error for a message that the peer gave up.
func abortedError(reason string) error {
	if reason == "" {
		return ErrAborted
	}
	return fmt.Errorf("%w: it says: %q", ErrAborted, reason)
}
