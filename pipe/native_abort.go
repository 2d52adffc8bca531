package pipe

import (
	"cmp"
	"context"

	"github.com/tensorpipe-go/tensorpipe/internal/quota"
)

// cancelLocked aborts all transfers of the message with cause and sends the peer a CANCEL frame, so
// that it sends no more of them. The caller holds nativeReader.mu.
func (in *nativeIncoming) cancelLocked(cause error) {
	in.reader.pipe.control.sendCancel(in.number)
	in.abort(cause)
}

// cancel locks nativeReader.mu, aborts all transfers of the message with cause and sends the peer a
// CANCEL frame. It does not wait until the channels have released the memory.
func (in *nativeIncoming) cancel(cause error) {
	in.reader.mu.Lock()
	defer in.reader.mu.Unlock()
	in.cancelLocked(cause)
}

// abort makes cause the reason in in.aborted, unless there is one, and aborts all transfers of the
// message that have started. startTransfer aborts those that start later. It does not wait until
// the channels have released the memory. The caller holds nativeReader.mu.
func (in *nativeIncoming) abort(cause error) {
	if in.aborted == nil && in.abortedChan != nil {
		close(in.abortedChan)
	}
	in.aborted = cmp.Or(in.aborted, cause)
	for _, part := range in.transfers {
		part.channel.Abort(part.id, cause)
	}
}

func (in *nativeIncoming) discard(context.Context) error {
	if !in.tryDiscard() {
		return in.errorFor(ErrAlreadyRead)
	}
	in.reader.pipe.control.noteRead(in.number)
	return nil
}

// tryDiscard discards the message and returns true, or returns false if a Read or Discard has
// claimed it. It does not count the message as read; discard does.
func (in *nativeIncoming) tryDiscard() bool {
	if !in.claim() {
		return false
	}
	in.discardClaimed()
	return true
}

// discardClaimed discards a message that the caller has claimed: it sends the peer a CANCEL frame
// if parts are not inline, has inline bytes that are still in the stream skipped, and ends the
// message. It does not count the message as read.
func (in *nativeIncoming) discardClaimed() {
	if in.large > 0 {
		in.reader.pipe.control.sendCancel(in.number)
	}
	if in.inlineLength > 0 {
		in.reader.stream.skipInline(in)
	}
	in.finish()
}

const (
	// maxEarlyAborts bounds the aborts that precede their messages. It is far more than the
	// messages that can be in flight.
	maxEarlyAborts = 1 << 16

	// maxEarlyReasons bounds the bytes of the reasons kept for them. Further reasons are dropped.
	maxEarlyReasons = 64 << 10
)

// earlyAborts holds the aborts that have arrived before their messages, by number. It is guarded by
// nativeReader.mu.
type earlyAborts struct {
	reasons map[uint64]string
	text    int // bytes of the reasons
	account *quota.Account
}

// add adds the abort of the message with this number. Only the first one of a message counts. The
// error matches ErrProtocol if there are too many; reasons that are too long together are dropped.
func (e *earlyAborts) add(number uint64, reason string) error {
	if _, again := e.reasons[number]; again {
		return nil
	}
	if len(e.reasons) >= maxEarlyAborts {
		return protocolError("%w", limitError("messages aborted before they came", maxEarlyAborts+1, maxEarlyAborts))
	}
	if len(reason) > maxEarlyReasons-e.text {
		reason = ""
	}
	if e.reasons == nil {
		e.reasons = map[uint64]string{}
	}
	e.reasons[number] = reason
	e.text += len(reason)
	e.account.Add(entryMemory + len(reason))
	return nil
}

// take removes the abort of a message that has arrived and returns it as an error that matches
// ErrAborted; nil if there is none.
func (e *earlyAborts) take(number uint64) error {
	reason, ok := e.reasons[number]
	if !ok {
		return nil
	}
	delete(e.reasons, number)
	e.text -= len(reason)
	e.account.Release(entryMemory + len(reason))
	return withReason(ErrAborted, reason)
}
