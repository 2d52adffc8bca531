package pipe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// bulkOpener opens the bulk connection. The client dials it and identifies it by the registration
// id of the handshake's answer; the server waits for it. A stream of the session takes its place if
// the session has streams that are as fast (Session.OpenBulk), or if the connection cannot be
// opened or has no raw stream.
type bulkOpener struct {
	pipe    *nativePipe
	dial    func(context.Context) (transport.Conn, error) // of the client
	pending *pendingConn                                  // of the server

	once   sync.Once
	stream chan struct{} // closed when the peer has announced a stream of the session

	creditMu sync.Mutex
	own      bool // the bulk connection is open, and no stream of the session
	credit   int  // granted to the peer, bytes of Context.windows
	ended    bool // nothing more is granted
}

func (b *bulkOpener) init(p *nativePipe, s *spec) {
	b.pipe = p
	b.dial, b.pending = s.dialBulk, s.pendingBulk
	b.stream = make(chan struct{})
}

// open opens the bulk connection and returns its stream, which the caller must close. If the
// session has fast streams (OpenBulk), the client opens one of them. Otherwise it dials a
// connection, and if the dial fails or the connection has no raw stream, it opens an ordinary
// stream of the session. The client announces a stream of the session to the server. The server
// waits for the connection or the announcement. If ctx ends first, the error is the cause of ctx.
func (b *bulkOpener) open(ctx context.Context) (transport.Stream, error) {
	if b.pipe.role == channel.RoleListen {
		return b.accept(ctx)
	}
	if s, err := b.pipe.session.OpenBulk(); !errors.Is(err, transport.ErrNotSupported) {
		b.pipe.control.sendBulk()
		return s, err
	}
	dialCtx, cancel := b.pipe.context.handshakeContext(ctx)
	conn, err := b.dial(dialCtx)
	cancel()
	if err == nil {
		var stream transport.Stream
		if stream, err = rawStream(conn); !errors.Is(err, transport.ErrNotSupported) {
			b.grantCredit(err == nil)
			return stream, err
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	b.pipe.context.log.Info("bulk data goes through the session", "peer", b.pipe.peerName(), "error", err)
	b.pipe.control.sendBulk()
	return b.pipe.session.Open()
}

// accept waits at the server until the client has opened the bulk connection, or has announced a
// stream of the session in its place, and returns the stream, which the caller must close. If the
// bulk connection arrives but fails, or has no raw stream, accept closes it and waits for an
// announced stream, for HandshakeTimeout at most; then it returns the error of the connection. If
// ctx ends first it returns the cause of ctx.
func (b *bulkOpener) accept(ctx context.Context) (transport.Stream, error) {
	var fault error // of the bulk connection
	var timeout <-chan time.Time
	for {
		select {
		case conn := <-b.pending.conn:
			fault = confirmConn(ctx, conn, func() error {
				if err := sendRequested(conn, b.pending.id); err != nil {
					return err
				}
				return receiveRequested(conn, b.pending.id)
			})
			if fault == nil {
				var stream transport.Stream
				if stream, fault = rawStream(conn); !errors.Is(fault, transport.ErrNotSupported) {
					b.grantCredit(fault == nil)
					return stream, fault
				}
			}
			t := time.NewTimer(b.pipe.context.opts.HandshakeTimeout)
			defer t.Stop()
			timeout = t.C
		case <-b.stream:
			return b.pipe.session.Accept(ctx)
		case <-timeout:
			return nil, fault
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// cancel stops expecting the bulk connection at the server, and closes it if it has arrived and is
// not used. At the client it does nothing.
func (b *bulkOpener) cancel() {
	if b.pending != nil {
		b.pending.cancel()
	}
}

// rawStream returns a stream of the raw bytes of conn. The stream owns conn: closing it closes
// conn. After an error conn is closed. The error matches transport.ErrNotSupported if conn has no
// raw stream, and otherwise is that of conn.
func rawStream(conn transport.Conn) (transport.Stream, error) {
	m, ok := conn.(transport.Multiplexer)
	if !ok {
		conn.Close()
		return nil, fmt.Errorf("bulk connection: %w", transport.ErrNotSupported)
	}
	stream, err := m.Stream()
	if err != nil {
		conn.Close()
	}
	return stream, err
}

// connectBulk dials addr and sends the registration id that identifies the connection as the bulk
// connection. The ends then exchange confirmations: the server confirms in bulkOpener.accept that
// it uses the connection, and then the client that it still wants it. So neither end relies on a
// connection that the other has rejected. If the error is not nil, the connection is closed and the
// first result must not be used; if ctx ends during the exchange, the error is its cause.
func connectBulk(ctx context.Context, t transport.Transport, addr string, id uint64) (transport.Conn, error) {
	conn, err := t.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return conn, confirmConn(ctx, conn, func() error {
		if err := sendRequested(conn, id); err != nil {
			return err
		}
		if err := receiveRequested(conn, id); err != nil {
			return err
		}
		return sendRequested(conn, id)
	})
}

// confirmConn calls f, which exchanges packets on conn, and returns nil if f succeeds before ctx
// ends. If f fails, it closes conn and returns the error of f. If ctx ends, it closes conn, which
// makes f return, and returns the cause of ctx.
func confirmConn(ctx context.Context, conn transport.Conn, f func() error) error {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	err := f()
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
	}
	return err
}

// sendRequested sends a packet on conn that identifies conn to the other end as the connection with
// this registration id, which the server has requested. The error is that of conn.
func sendRequested(conn transport.Conn, id uint64) error {
	return conn.WriteFrames(transport.Frame{requestedPacket(id)})
}

// receiveRequested receives a packet from conn and checks that it is the one that sendRequested
// sends for this registration id. For any other packet the error matches ErrProtocol. If conn
// fails, the error is that of conn.
func receiveRequested(conn transport.Conn, id uint64) error {
	want := requestedPacket(id)
	frame, err := readFrame(conn, nil, len(want), nil)
	if err != nil {
		return err
	}
	return checkRequested(frame, id)
}

func checkRequested(frame []byte, id uint64) error {
	if !bytes.Equal(frame, requestedPacket(id)) {
		return protocolError("a connection that was asked for begins with the packet of another")
	}
	return nil
}

func requestedPacket(id uint64) []byte {
	packet := wire.RequestedConnection{RegistrationID: id}
	return packet.Append(nil)
}

// maxCredit bounds the credit that one pipe grants its peer for eager transfers, and minCredit is the
// least that it grants.
const (
	maxCredit = 8 << 20
	minCredit = 256 << 10

	// windowOfCredit is the part of the credit by which the window of the message stream grows as well. With
	// maxCredit it then always has room for one answer: at least half of it is granted at any time.
	windowOfCredit = 4
)

// acquireCredit acquires bytes of Limits.ContextWindowBytes with which a pipe grants its peer credit
// for eager transfers, and returns their number, 0 if they are too few. Each pipe gets a sixteenth
// of the free bytes of the first half, so that many pipes leave the other half to the windows.
func (c *Context) acquireCredit() int {
	n := min((c.windows.Size()/2-c.windows.InUse())/16, maxCredit)
	if n < minCredit || !c.windows.TryAcquire(n) {
		return 0
	}
	return n
}

// grantCredit grants the peer credit for eager transfers, once: when the bulk connection is a
// connection of its own, which own reports, and the peer is admitted.
func (b *bulkOpener) grantCredit(own bool) {
	b.creditMu.Lock()
	defer b.creditMu.Unlock()
	b.own = b.own || own
	if !b.pipe.eager || !b.own || b.credit > 0 || b.ended || !b.pipe.account.Admitted() {
		return
	}
	if b.credit = b.pipe.context.acquireCredit(); b.credit == 0 {
		return
	}
	if o := &b.pipe.out; o.reads != nil && o.window != nil {
		o.window.GrowWindow(b.credit / windowOfCredit) // for inline answers of the peer
	}
	b.pipe.mover.Grant(b.credit)
}

// releaseCredit gives back what grantCredit has acquired, and makes it grant nothing more. The mover
// must have been closed.
func (b *bulkOpener) releaseCredit() {
	b.creditMu.Lock()
	defer b.creditMu.Unlock()
	b.ended = true
	b.pipe.context.windows.Release(b.credit)
	b.credit = 0
}

// awaitCredit waits until the peer has read or dropped all eager transfers of this end, or the pipe
// is down. If ctx ends first the error matches ErrCloseTimeout.
func (p *nativePipe) awaitCredit(ctx context.Context) error {
	if !p.mover.Lent() {
		return nil
	}
	p.control.send(&native.Control{Kind: native.WantCredit})
	if !closedBefore(ctx, p.mover.Returned(), p.down) {
		return fmt.Errorf("%w: the peer has not read all messages", ErrCloseTimeout)
	}
	return nil
}

// eagerTransfer returns the lane of the bulk connection and the bytes of the transfer of tensor k, if
// it can be eager: it goes between hosts, and its channel is that lane.
func (p *nativePipe) eagerTransfer(parts []native.Tensor, k int) (lane uint16, n int, ok bool) {
	if part := &parts[k]; part.Inline || part.Joined || !betweenHosts(part) {
		return 0, 0, false
	}
	bytes := parts[k].WireLength()
	for next, left := k+1, native.JoinedTo(parts, k); left > 0; next++ {
		if parts[next].Joined {
			bytes += parts[next].Length
			left--
		}
	}
	if bytes < native.MinEager || bytes > native.MaxEager {
		return 0, 0, false
	}
	n = int(bytes)
	lane, ok = p.mover.LaneOf(p.channelFor(device.CPU(), device.CPU(), n).channel)
	return lane, n, ok
}

// onBulk reports whether tensors of n bytes between hosts take a lane of the bulk connection.
func (p *nativePipe) onBulk(n int) bool {
	_, ok := p.mover.LaneOf(p.channelFor(device.CPU(), device.CPU(), n).channel)
	return ok
}

// markEager marks the parts of o.frame, which describes m, that are sent eagerly. The caller holds mu.
func (o *nativeWriter) markEager(m *Message) {
	if !o.pipe.eager {
		return
	}
	count := 0 // of eager parts
	mark := func(n int) bool {
		eager := o.pipe.mover.CanSendEager(n, count)
		if eager {
			count++
		}
		return eager
	}
	for i := range o.frame.Payloads {
		part := &o.frame.Payloads[i]
		n := part.WireLength()
		part.Eager = !part.Inline && n >= native.MinEager && n <= native.MaxEager && mark(int(n))
	}
	for i := range o.frame.Tensors {
		if _, n, ok := o.pipe.eagerTransfer(o.frame.Tensors, i); ok && m.Tensors[i].Buffer.Stream() == nil {
			o.frame.Tensors[i].Eager = mark(n)
		}
	}
}

// expectEager announces the eager transfers of the message to the mover, which keeps their bytes
// until Read, or until the message is aborted or discarded. The error matches ErrProtocol: the peer
// does not have the credit, or a part cannot be eager. The caller holds nativeReader.mu.
func (in *nativeIncoming) expectEager() error {
	p := in.reader.pipe
	expect := func(lane uint16, index, n int) error {
		id := transferID(p.role != channel.RoleListen, in.number, index)
		in.transfers = append(in.transfers, incomingTransfer{id, p.mover.Lane(lane)})
		if err := p.mover.Expect(lane, id, n); err != nil {
			return protocolError("part %d: %w", index, err)
		}
		return nil
	}
	for k := range in.parts.Payloads {
		if part := &in.parts.Payloads[k]; part.Eager {
			if err := expect(payloadLane, k, int(min(part.WireLength(), native.MaxEager+1))); err != nil {
				return err
			}
		}
	}
	for k := range in.parts.Tensors {
		if !in.parts.Tensors[k].Eager {
			continue
		}
		lane, n, ok := p.eagerTransfer(in.parts.Tensors, k)
		if !ok {
			return protocolError("tensor %d: it cannot be eager", k)
		}
		if err := expect(lane, k, n); err != nil {
			return err
		}
	}
	return nil
}

// dropEager makes the mover drop the eager transfers of a message that no Read has begun to
// receive. It locks nativeReader.mu.
func (in *nativeIncoming) dropEager() {
	in.reader.mu.Lock()
	defer in.reader.mu.Unlock()
	for _, part := range in.transfers {
		part.channel.Abort(part.id, ErrCancelled)
	}
}
