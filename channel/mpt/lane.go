package mpt

import (
	"context"
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/bulk"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// lane is one that is open.
type lane struct {
	number  int
	conn    transport.Conn
	mover   *bulk.Mover
	channel channel.Channel // of mover

	// Guarded by nativeEnd.mu:
	ordered int  // slices that the peer was asked for
	moving  int  // slices that the mover has, both ways
	retired bool // nothing moves here any more, at neither end
}

// newLanes makes lanes of connections that the two ends have agreed on.
func (e *nativeEnd) newLanes(conns []transport.Conn) []*lane {
	lanes := make([]*lane, len(conns))
	for i, conn := range conns {
		l := &lane{number: i, conn: conn}
		l.mover = bulk.New(bulk.Config{
			Open:     func(context.Context) (transport.Stream, error) { return stream(conn) },
			Ready:    func(uint16, uint64) {}, // the order says it
			Broken:   func(err error) { e.laneBroken(l, err) },
			Arrived:  e.arrived,
			Checksum: e.checksum,
			Peer:     e.peer,
		})
		l.channel = l.mover.Lane(0)
		lanes[i] = l
	}
	return lanes
}

// stream gives up the framing of a connection.
func stream(conn transport.Conn) (transport.Stream, error) {
	s, ok := conn.(transport.Streamer)
	if !ok {
		return nil, fmt.Errorf("lane: %w", transport.ErrNotSupported)
	}
	return s.Stream()
}

// close ends what moves on the lane. A mover that nothing went through has not opened
// the connection.
func (l *lane) close(cause error) {
	_ = l.mover.Close(cause)
	_ = l.conn.Close()
}

// laneBroken ends the channel, but not before the mover has moved on, and not for a
// lane that the peer closes because nobody needs it.
func (e *nativeEnd) laneBroken(l *lane, err error) {
	if named, ok := errors.AsType[*channel.Error](err); ok {
		err = named.Err // it is this channel that the pipe knows
	}
	e.life.Go(func() {
		if !e.isRetired(l) {
			e.lost(err)
		}
	})
}

func (e *nativeEnd) isRetired(l *lane) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return l.retired
}
