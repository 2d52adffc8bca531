package mpt

const (
	// minStripe is the size in bytes of the smallest slice, except the last one of a tensor. A tensor
	// of less than two is not sliced. It is part of the native dialect.
	minStripe = 512 << 10

	// NativeBytes is the size in bytes from which tensors move on lanes in the native dialect; smaller
	// ones move over the bulk connection.
	NativeBytes = 2 * minStripe

	// maxSlice is the size of the largest slice: as much as a bulk.Mover writes with one system call.
	maxSlice = 4 << 20

	// slicesPerLane is the number of slices per lane into which a tensor is divided, so that a slow
	// lane does not hold many at the end.
	slicesPerLane = 4

	// requestsPerLane is the number of slices requested from a lane at a time: while one moves, the
	// request for the next is on its way.
	requestsPerLane = 2

	// maxUnmatchedOffers bounds the offers without a Recv.
	maxUnmatchedOffers = 1 << 16
)

// sendOffer offers op, a Send whose memory is ready, to the peer: on lanes if this end may use
// them. Otherwise it offers op over e.host, the pipe's bulk connection, and begins to send it there
// at once. The caller holds mu.
func (e *nativeEnd) sendOffer(op *transferOp) {
	op.offered, op.route = true, routeLanes
	if !e.mayOffer(e.role) {
		op.route = routeHost
		e.startWhole(&e.sends, op)
	}
	e.writer.Push(controlFrame{kind: kindOffer, id: op.ID, route: op.route})
}

// match begins op, a Recv whose memory is ready, if the peer has offered its tensor. If not, it
// does nothing: handleOffer begins op when the offer arrives. The caller holds mu.
func (e *nativeEnd) match(op *transferOp) {
	if w, ok := e.offers[op.ID]; ok {
		delete(e.offers, op.ID)
		e.accept(op, w)
	}
}

// accept begins op, a Recv whose memory is ready and whose tensor the peer has offered on route w:
// it receives the whole tensor over e.host, or requests slices on lanes. The caller holds mu.
func (e *nativeEnd) accept(op *transferOp, w route) {
	op.offered, op.route = true, w
	if w == routeHost {
		e.startWhole(&e.recvs, op)
		return
	}
	e.unrequested.Push(op)
	e.requestSlices()
}

// requestSlices requests slices of the tensors in e.unrequested from the peer, the oldest tensor
// first, and starts to receive them. It stops when each lane has requestsPerLane requests or
// nothing is left to request. The lanes must be open unless e.unrequested is empty. The caller
// holds mu.
func (e *nativeEnd) requestSlices() {
	const page = 64 << 10
	for e.unrequested.Len() > 0 {
		l := e.lanes[0] // with the fewest requests
		for _, other := range e.lanes {
			if other.requested < l.requested {
				l = other
			}
		}
		if l.requested == requestsPerLane {
			return
		}
		op := e.unrequested.Front()
		length := op.Buf.Len() / (slicesPerLane * len(e.lanes))
		length = (length + page - 1) / page * page
		length = max(min(length, maxSlice), e.factory.stripe)
		length = min(length, op.Buf.Len()-op.assigned)
		order := controlFrame{kind: kindOrder, id: op.ID, offset: uint64(op.assigned), length: uint64(length), count: l.number}
		l.requested++
		e.startSlice(&e.recvs, op, e.newSlice(&e.recvs, l, length))
		e.writer.Push(order) // the lane expects the slice now
		if op.assigned == op.Buf.Len() {
			e.unrequested.Pop()
		}
	}
}

// newSlice returns a slice of length bytes on lane l, with the next id of direction s, and
// increments that id. It does not start to move the slice. Both ends call newSlice once for each
// request, in the order of the requests, so that a slice has the same id at both. The caller holds
// mu.
func (e *nativeEnd) newSlice(s *direction, l *lane, length int) *slice {
	sl := &slice{on: l.channel, lane: l, id: s.next, length: length}
	s.next++
	return sl
}

// handleOffer handles w, an offer of the peer: it begins the Recv with that id if its memory is
// ready, and otherwise keeps the offer for the Recv. It also calls wantLanes. The error matches
// channel.ErrProtocol: the transfer was offered twice, there are no lanes for it, or too many
// offers have no Recv. The caller holds mu.
func (e *nativeEnd) handleOffer(w controlFrame) error {
	op := e.recvs.ops[w.id]
	switch _, twice := e.offers[w.id]; {
	case twice || op != nil && op.offered:
		return protocolError("transfer %d is offered twice", w.id)
	case w.route == routeLanes && !e.mayOffer(1-e.role):
		return protocolError("transfer %d is offered on lanes, of which there are none", w.id)
	case len(e.offers) == maxUnmatchedOffers:
		return protocolError("more than %d offers without a Recv", maxUnmatchedOffers)
	}
	e.wantLanes()
	if op != nil && op.ready {
		e.accept(op, w.route)
	} else {
		e.offers[w.id] = w.route
	}
	return nil
}

// handleOrder handles w, the peer's request for a slice: it starts to send the slice. If the
// transfer is unknown it sends nothing and returns nil, because the Send may have been aborted
// after the peer had sent the request. The error matches channel.ErrProtocol: the lane does not
// exist, or the slice is not the next part of a transfer that was offered on lanes. The caller
// holds mu.
func (e *nativeEnd) handleOrder(w controlFrame) error {
	if w.count >= len(e.lanes) {
		return protocolError("an order on lane %d of %d", w.count, len(e.lanes))
	}
	l := e.lanes[w.count]
	sl := e.newSlice(&e.sends, l, int(w.length))
	op := e.sends.ops[w.id]
	if op == nil {
		return nil
	}
	left := uint64(op.Buf.Len() - op.assigned)
	switch {
	case op.route != routeLanes || w.offset != uint64(op.assigned):
		return protocolError("an order of transfer %d from byte %d, where %d would be next", w.id, w.offset, op.assigned)
	case w.length == 0 || w.length > left || w.length < uint64(e.factory.stripe) && w.length < left:
		return protocolError("an order of %d bytes of transfer %d, of which %d are left", w.length, w.id, left)
	}
	e.startSlice(&e.sends, op, sl)
	l.mover.HandleReady(0, sl.id)
	return nil
}
