package pipe

import (
	"cmp"
	"context"
	"time"
)

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
