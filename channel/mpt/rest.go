package mpt

import (
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// restLimit is for how long at least nothing moves on lanes that are closed; it may
// be twice as long.
const restLimit = 30 * time.Second

// resting is how far the two ends are with closing lanes that nobody needs. Each
// says wordRest in its turn, the client twice.
type resting int

const (
	restNo     resting = iota
	restAsked          // by the client, which offers nothing on lanes any more
	restAgreed         // by the server, which has nothing on them any more, nor will it
)

// watchIdle has the client look now and then whether its lanes are needed. The
// caller holds mu.
func (e *nativeEnd) watchIdle() {
	if e.role == channel.RoleConnect {
		e.idle = time.AfterFunc(restLimit, e.lookIdle)
	}
}

func (e *nativeEnd) lookIdle() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over() != nil || e.lanes == nil {
		return
	}
	if e.moved || e.busy() {
		e.moved = false
		e.idle.Reset(restLimit)
		return
	}
	e.opening.rest = restAsked
	e.say(word{kind: wordRest})
}

// busy reports whether anything is on lanes, or about to be. The caller holds mu.
func (e *nativeEnd) busy() bool {
	for _, l := range e.lanes {
		if l.moving > 0 {
			return true
		}
	}
	for _, s := range []*side{&e.sends, &e.recvs} {
		for _, j := range s.jobs {
			if j.offered && j.way == wayLanes {
				return true
			}
		}
	}
	for _, w := range e.offers {
		if w == wayLanes {
			return true
		}
	}
	return false
}

// heardRest takes in that the peer has no more use for the lanes.
func (e *nativeEnd) heardRest() error {
	o := &e.opening
	switch {
	case e.role == channel.RoleListen && e.lanes != nil && o.rest == restNo:
		o.rest = restAsked
	case e.role == channel.RoleConnect && o.rest == restAsked:
		o.rest = restAgreed
	case e.role == channel.RoleListen && o.rest == restAgreed:
		e.retire()
		return nil
	default:
		return protocolError("it lets lanes rest, out of turn")
	}
	e.settleDown()
	return nil
}

// settleDown goes on with closing the lanes if it is this end's turn and nothing
// moves on them. The caller holds mu.
func (e *nativeEnd) settleDown() {
	mine := restAsked
	if e.role == channel.RoleConnect {
		mine = restAgreed
	}
	if e.over() != nil || e.opening.rest != mine || e.busy() {
		return
	}
	e.say(word{kind: wordRest})
	for _, l := range e.lanes {
		l.retired = true
	}
	if e.role == channel.RoleListen {
		e.opening.rest = restAgreed // the client closes first: it may have to read the rest
		return
	}
	e.retire()
}

// retire closes the lanes, so that they can be opened anew. The caller holds mu.
func (e *nativeEnd) retire() {
	for _, l := range e.lanes {
		e.life.Go(func() { l.close(transport.ErrClosed) })
	}
	e.lanes, e.conns, e.opening = nil, nil, opening{}
}

// onLanes reports whether this end may offer on lanes, or the peer may. The caller
// holds mu.
func (e *nativeEnd) onLanes(offers channel.Role) bool {
	limit := restAgreed // what the server said before it has agreed may be on its way
	if offers == channel.RoleConnect || offers == e.role {
		limit = restAsked
	}
	return e.lanes != nil && e.opening.rest < limit
}
