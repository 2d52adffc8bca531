package pipe

import "github.com/tensorpipe-go/tensorpipe/internal/quota"

const (
	// maxEarly bounds the messages that the peer may give up before they come.
	// It is far more than fit between a sender and a receiver.
	maxEarly = 1 << 16

	// maxEarlyText bounds the reasons kept for them, in bytes altogether. Those
	// beyond it are forgotten: that a message was given up is what matters.
	maxEarlyText = 64 << 10
)

// earlyAborts are the messages that the peer gave up before they came.
type earlyAborts struct {
	reasons map[uint64]string
	text    int // bytes of the reasons
	account *quota.Account
}

// add notes a message. The first reason stays.
func (e *earlyAborts) add(number uint64, reason string) error {
	if _, again := e.reasons[number]; again {
		return nil
	}
	if len(e.reasons) >= maxEarly {
		return protocolError("%w", limitError("messages given up before they came", maxEarly+1, maxEarly))
	}
	if len(reason) > maxEarlyText-e.text {
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

// take is why a message that has come now was given up before, nil if it was
// not.
func (e *earlyAborts) take(number uint64) error {
	reason, ok := e.reasons[number]
	if !ok {
		return nil
	}
	delete(e.reasons, number)
	e.text -= len(reason)
	e.account.Release(entryMemory + len(reason))
	return abortedError(reason)
}
