package pipe

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// bulkOpener opens the bulk connection: the end that dialled the pipe dials it,
// with the id that the answer gave, and the other waits for it. Where the session
// has streams as good as that, one of them takes its place; and so does any where
// the connection cannot be had, because the listener was closed meanwhile or
// something in between is in the way.
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
	if s, ok := b.pipe.session.(transport.BulkSession); ok {
		b.pipe.control.bulk()
		return s.OpenBulk()
	}
	conn, err := b.reach(ctx)
	if err == nil {
		return rawStream(conn)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	b.pipe.context.log.Info("bulk goes through the session", "peer", b.pipe.peerName(), "error", err)
	b.pipe.control.bulk()
	return b.pipe.session.Open()
}

func (b *bulkOpener) reach(ctx context.Context) (transport.Conn, error) {
	ctx, cancel := b.pipe.context.handshakeContext(ctx)
	defer cancel()
	return b.dial(ctx)
}

// await waits for the peer's connection, or for its word that it has none.
func (b *bulkOpener) await(ctx context.Context) (transport.Stream, error) {
	select {
	case conn := <-b.ticket.conn:
		err := welcomeBulk(ctx, conn, b.ticket.id)
		if err == nil {
			return rawStream(conn)
		}
		return b.awaitStream(ctx, err)
	case <-b.stream:
		return b.pipe.session.Accept(ctx)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// awaitStream waits for the word of a peer whose connection came to nothing, for
// as long as its opening may take.
func (b *bulkOpener) awaitStream(ctx context.Context, fault error) (transport.Stream, error) {
	t := time.NewTimer(b.pipe.context.opts.HandshakeTimeout)
	defer t.Stop()
	select {
	case <-b.stream:
		return b.pipe.session.Accept(ctx)
	case <-t.C:
		return nil, fault
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

// joinBulk opens a connection that says that it is the bulk connection with id.
// The listening end says so too when it has taken it, and the client once more
// that it still wants it: neither counts on a connection that was refused, was
// reset with the listener, or comes too late for the other.
func joinBulk(ctx context.Context, t transport.Transport, addr string, id uint64) (transport.Conn, error) {
	conn, err := t.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return conn, agree(ctx, conn, func() error {
		if err := sayRequested(conn, id); err != nil {
			return err
		}
		if err := hearRequested(conn, id); err != nil {
			return err
		}
		return sayRequested(conn, id)
	})
}

// welcomeBulk is the listening end's part of that.
func welcomeBulk(ctx context.Context, conn transport.Conn, id uint64) error {
	return agree(ctx, conn, func() error {
		if err := sayRequested(conn, id); err != nil {
			return err
		}
		return hearRequested(conn, id)
	})
}

// agree runs f, which talks on conn, until ctx ends. Where it fails conn is
// closed.
func agree(ctx context.Context, conn transport.Conn, f func() error) error {
	unwatch := context.AfterFunc(ctx, func() { conn.Close() })
	err := f()
	if !unwatch() {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
	}
	return err
}

// sayRequested and hearRequested are the words by which an end takes a connection
// that was asked for.
func sayRequested(conn transport.Conn, id uint64) error {
	return conn.WriteFrames(transport.Frame{requestedPacket(id)})
}

func hearRequested(conn transport.Conn, id uint64) error {
	want := requestedPacket(id)
	frame, err := readFrame(conn, nil, len(want), nil)
	if err != nil {
		return err
	}
	return checkRequested(frame, id)
}

func checkRequested(frame []byte, id uint64) error {
	if !bytes.Equal(frame, requestedPacket(id)) {
		return protocolError("a connection that was asked for begins with words of another")
	}
	return nil
}

func requestedPacket(id uint64) []byte {
	packet := wire.RequestedConnection{RegistrationID: id}
	return packet.Append(nil)
}
