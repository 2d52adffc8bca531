package agent

import (
	"context"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// shiftContext is the context of interceptors that see an answer within a shift. A call
// that one of them makes does not wait for room, which may come free only by what the
// same pipe brings next; when it waits for anything else, as for another pipe, it gives
// the shift up.
type shiftContext struct {
	context.Context
	mu    sync.Mutex
	shift *shift // nil when they have returned
}

type shiftKey struct{}

// Value implements context.Context.
func (c *shiftContext) Value(key any) any {
	switch key.(type) {
	case shiftKey, future.WaiterKey:
		return c
	}
	return c.Context.Value(key)
}

// shiftOf is the innermost one that ctx was made of, nil if there is none.
func shiftOf(ctx context.Context) *shiftContext {
	c, _ := ctx.Value(shiftKey{}).(*shiftContext)
	return c
}

// isOn reports whether the interceptors are running. c may be nil.
func (c *shiftContext) isOn() bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shift != nil
}

// relieve gives the shift up, if there still is one. c may be nil.
func (c *shiftContext) relieve() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shift.relieve()
}

// end says that the interceptors have returned.
func (c *shiftContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shift = nil
}

// BeginWait implements future.Waiter.
func (c *shiftContext) BeginWait() (end func()) { return leaveSlot(c) }
