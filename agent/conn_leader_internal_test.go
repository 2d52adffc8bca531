package agent

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ranTask is a task that closes itself when it runs.
type ranTask chan struct{}

func (c ranTask) Run(context.Context, *Request) { close(c) }

// The read loop keeps a request that is detached, and promotes another goroutine. The request runs
// on a new goroutine if a caller leads, or for some time after a promotion that was slow.
func TestDetach(t *testing.T) {
	r := new(Request)
	l := new(leader)
	l.detach(r)
	require.Same(t, r, l.detached)

	onNewGoroutine := func(l *leader) {
		a := &Agent{}
		c, ran := &conn{agent: a, backlog: backlog{maxBytes: 1}}, make(ranTask)
		l.detach(&Request{conn: c, task: ran})
		<-ran
		require.Nil(t, l.detached)
	}
	onNewGoroutine(&leader{lock: new(sync.Mutex)})
	onNewGoroutine(&leader{handover: handover{paused: 1}})

	late := &leader{handover: handover{promoted: time.Now().Add(-time.Minute)}}
	late.handover.observe()
	for range promotionPause {
		require.False(t, late.handover.takePromotion())
	}
	require.True(t, late.handover.takePromotion())

	prompt := &leader{handover: handover{promoted: time.Now().Add(time.Minute)}}
	prompt.handover.observe()
	require.True(t, prompt.handover.takePromotion())
}
