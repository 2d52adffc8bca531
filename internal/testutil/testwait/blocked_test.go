package testwait

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// gate blocks Wait until it is closed.
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

// StartBlocked fails the test if the call returns instead of blocking.
func TestStartBlockedReturns(t *testing.T) {
	d := &endingTB{TB: t}
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

// endingTB is a test whose goroutine ends where it fails.
type endingTB struct {
	testing.TB
	reason string
}

func (*endingTB) Helper() {}

func (s *endingTB) Fatalf(format string, args ...any) {
	s.reason = fmt.Sprintf(format, args...)
	runtime.Goexit()
}
