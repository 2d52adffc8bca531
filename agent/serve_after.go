package agent

import (
	"context"
	"fmt"
	"sync/atomic"
)

// AfterReply makes f run, on a goroutine of its own, once the agent does not use the memory of the
// reply to a request any more: after the reply was sent, or was lost. A handler that replies with
// parts of a pool calls it, and f returns these parts to the pool. ctx is the context of the
// handler, of a PlaceFunc of WithArgsInto, or one derived from it. The argument of f is nil if the
// reply was sent, which does not mean that the caller has received it; otherwise it is the reason
// for which the reply was lost, such as ErrUnreachable or ErrClosed. A request that fails has a
// reply too.
//
// Several functions run concurrently. If the reply has left before, f runs at once. After an error
// f does not run: the error matches ErrConfig if f is nil, if ctx is not that of a handler, or if
// the function is served WithOnce, which keeps its replies.
func AfterReply(ctx context.Context, f func(err error)) error {
	r := requestOf(ctx)
	switch {
	case f == nil:
		return fmt.Errorf("%w: AfterReply: the function is nil", ErrConfig)
	case r == nil:
		return fmt.Errorf("%w: AfterReply: not the context of a handler", ErrConfig)
	case r.handler.once:
		return r.wrapError(fmt.Errorf("%w: AfterReply: a function that is served WithOnce keeps its replies", ErrConfig))
	}
	r.replied.add(f)
	return nil
}

// replyHooks is the functions that run after the reply to a request has left.
type replyHooks struct{ last atomic.Pointer[replyHook] }

// replyHook is one of the functions, or, with a function that is nil, the mark that the reply has
// left.
type replyHook struct {
	f    func(error)
	next *replyHook
	err  error // of the mark: with which the reply was lost
}

// replySentMark is the mark of all replies that were sent.
var replySentMark = &replyHook{}

// add has f run after the reply has left, or at once if it has left before.
func (h *replyHooks) add(f func(error)) {
	hook := &replyHook{f: f}
	for {
		last := h.last.Load()
		if last != nil && last.f == nil {
			go f(last.err)
			return
		}
		hook.next = last
		if h.last.CompareAndSwap(last, hook) {
			return
		}
	}
}

// run records that the reply has left, with the error err, and runs the functions. It is called
// once.
func (h *replyHooks) run(err error) {
	mark := replySentMark
	if err != nil {
		mark = &replyHook{err: err}
	}
	for hook := h.last.Swap(mark); hook != nil; hook = hook.next {
		go hook.f(err)
	}
}
