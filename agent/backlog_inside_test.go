package agent

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What is short waits for no slot behind answers that wait: handlers that have all of
// them may be waiting for it.
func TestShortRequestsWaitForNoSlot(t *testing.T) {
	var b backlog
	short, long := &Request{handler: entry{short: true}}, &Request{}
	require.False(t, b.hold(short), "no answer waits")
	b.begin()
	require.True(t, b.hold(long))
	require.True(t, b.hold(short))
	require.Nil(t, b.next(&b.short), "an answer waits")
	b.end()
	require.Same(t, short, b.next(&b.short))
	require.Nil(t, b.next(&b.short))
	require.True(t, b.holds())
	require.Same(t, long, b.next(&b.held))
	require.False(t, b.holds())
}
