package patience

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// gate is what a call waits at.
type gate chan struct{}

func (g gate) Wait() string {
	<-g
	return "open"
}

func TestStartBlocked(t *testing.T) {
	g := make(gate)
	result := StartBlocked(t, "Wait", g.Wait)
	require.Empty(t, result)
	close(g)
	require.Equal(t, "open", Finish(t, result))
}

// A call that does not block is no call that waits.
func TestStartBlockedReturns(t *testing.T) {
	d := &stopped{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		g := make(gate)
		close(g)
		StartBlocked(d, "Wait", g.Wait)
	}()
	<-done
	require.Equal(t, "Wait returns where it should block", d.reason)
}

// stopped is a test that ends where it fails.
type stopped struct {
	testing.TB
	reason string
}

func (*stopped) Helper() {}

func (s *stopped) Fatalf(format string, args ...any) {
	s.reason = fmt.Sprintf(format, args...)
	runtime.Goexit()
}
