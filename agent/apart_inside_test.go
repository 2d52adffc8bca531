package agent

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ranTask says that it ran.
type ranTask chan struct{}

func (c ranTask) Run(context.Context, *Request) { close(c) }

// A shift is passed on for what takes long, unless somebody looks for his answer in it, or
// the last one to take it over was late.
func TestPassingOn(t *testing.T) {
	r := new(Request)
	s := new(shift)
	s.apart(r)
	require.Same(t, r, s.next)

	elsewhere := func(s *shift) {
		a := &Agent{}
		c, ran := &conn{agent: a, backlog: backlog{most: 1}}, make(ranTask)
		s.apart(&Request{conn: c, task: ran})
		<-ran
		require.Nil(t, s.next)
	}
	elsewhere(&shift{lock: new(sync.Mutex)})
	elsewhere(&shift{pass: pass{stay: 1}})

	late := &shift{pass: pass{at: time.Now().Add(-time.Minute)}}
	late.pass.begun()
	for range stayFor {
		require.False(t, late.pass.allowed())
	}
	require.True(t, late.pass.allowed())

	inTime := &shift{pass: pass{at: time.Now().Add(time.Minute)}}
	inTime.pass.begun()
	require.True(t, inTime.pass.allowed())
}
