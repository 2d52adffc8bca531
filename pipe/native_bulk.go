package pipe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// bulkOpener opens the bulk connection: the end that dialled the pipe dials it,
// with the id that the answer gave, and the other waits for it. Where it cannot
// be had, because the listener was closed meanwhile or something in between is
// in the way, a further stream of the session takes its place.
type bulkOpener struct {
	pipe   *nativePipe
	dial   func(context.Context) (transport.Conn, error) // of the end that dialled
	ticket *ticket                                       // of the other end

	once   sync.Once
	stream chan struct{} // closed when the peer says that it takes a stream
}

func (b *bulkOpener) init(p *nativePipe, s *spec) {
	b.pipe = p
	b.dial, b.ticket = s.dialBulk, s.bulkTicket
	b.stream = make(chan struct{})
}

// open is called when the first transfer is ready.
func (b *bulkOpener) open(ctx context.Context) (transport.Stream, error) {
	if b.pipe.role == channel.RoleListen {
		return b.await(ctx)
	}
	ctx, cancel := b.pipe.context.handshakeContext(ctx)
	defer cancel()
	conn, err := b.dial(ctx)
	if err == nil {
		return rawStream(conn)
	}
	b.pipe.context.log.Info("bulk goes through the session", "peer", b.pipe.peerName(), "error", err)
	b.pipe.control.bulk()
	return b.pipe.session.Open()
}

func (b *bulkOpener) await(ctx context.Context) (transport.Stream, error) {
	select {
	case conn := <-b.ticket.conn:
		return welcomeBulk(conn, b.ticket.id)
	case <-b.stream:
		return b.pipe.session.Accept(ctx)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// useStream notes that the peer could not dial.
func (b *bulkOpener) useStream() { b.once.Do(func() { close(b.stream) }) }

// cancel gives up the claim to a connection that was never needed.
func (b *bulkOpener) cancel() {
	if b.ticket != nil {
		b.ticket.cancel()
	}
}

func rawStream(conn transport.Conn) (transport.Stream, error) {
	s, ok := conn.(transport.Streamer)
	if !ok {
		conn.Close()
		return nil, fmt.Errorf("bulk connection: %w", transport.ErrNotSupported)
	}
	stream, err := s.Stream()
	if err != nil {
		conn.Close()
	}
	return stream, err
}

// joinBulk opens a connection that says that it is the bulk connection with id,
// and waits until the listening end has taken it for that.
func joinBulk(ctx context.Context, t transport.Transport, addr string, id uint64) (transport.Conn, error) {
	conn, err := t.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	unwatch := context.AfterFunc(ctx, func() { conn.Close() })
	if err = conn.WriteFrames(bulkFrame(id)); err == nil {
		err = awaitWelcome(conn, id)
	}
	if !unwatch() {
		err = errors.Join(err, context.Cause(ctx))
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// welcomeBulk tells the other end that its connection has come through: one that
// only looked so can still be refused, or reset with the listener.
func welcomeBulk(conn transport.Conn, id uint64) (transport.Stream, error) {
	if err := conn.WriteFrames(bulkFrame(id)); err != nil {
		conn.Close()
		return nil, err
	}
	return rawStream(conn)
}

func awaitWelcome(conn transport.Conn, id uint64) error {
	want := bulkFrame(id)[0]
	frame, err := readFrame(conn, nil, len(want))
	if err == nil && !bytes.Equal(frame, want) {
		err = protocolError("the bulk connection is welcomed with other words than its own")
	}
	return err
}

// bulkFrame is what both ends of the bulk connection say first.
func bulkFrame(id uint64) transport.Frame {
	packet := wire.RequestedConnection{RegistrationID: id}
	return transport.Frame{packet.Append(nil)}
}
