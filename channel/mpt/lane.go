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
	mover   *bulk.Mover
	channel channel.Channel // of mover
	ordered int             // slices that the peer was asked for, guarded by nativeEnd.mu
}

// newLanes makes lanes of connections that the two ends have agreed on.
func (e *nativeEnd) newLanes(conns []transport.Conn) []*lane {
	lanes := make([]*lane, len(conns))
	for i, conn := range conns {
		m := bulk.New(bulk.Config{
			Open:     func(context.Context) (transport.Stream, error) { return stream(conn) },
			Ready:    func(uint16, uint64) {}, // the order says it
			Broken:   e.laneBroken,
			Checksum: e.checksum,
			Peer:     e.peer,
		})
		lanes[i] = &lane{number: i, mover: m, channel: m.Lane(0)}
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

// laneBroken ends the channel, but not before the mover has moved on.
func (e *nativeEnd) laneBroken(err error) {
	if named, ok := errors.AsType[*channel.Error](err); ok {
		err = named.Err // it is this channel that the pipe knows
	}
	e.life.Go(func() { e.life.Fail(e.explain(err)) })
}
