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

// detach of the read loop's leader records the request in the leader. If a caller leads, or while
// promotions are paused, the request runs on a new goroutine instead. A promotion that was slow
// pauses promotions for promotionPause requests.
func TestDetach(t *testing.T) {
	c := &conn{agent: &Agent{}, backlog: backlog{maxBytes: 1}}
	r := &Request{conn: c}
	l := &leader{conn: c}
	l.detach(r)
	require.Same(t, r, l.detached)

	onNewGoroutine := func(l *leader) {
		l.conn = c
		ran := make(ranTask)
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
