package agent_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/simnet"
)

// Where a pipe can be opened in one direction only, because the other one is behind a
// firewall that drops what comes, both ends call by that, whichever it is and whatever the
// other one is still trying.
func TestOneDirectionOnly(t *testing.T) {
	for name, blind := range map[string]int{"lower name": 0, "higher name": 1} {
		t.Run(name, func(t *testing.T) {
			overSlowLinks(t, 2, serveDouble, func(t *testing.T, group []*agent.Agent, _ *simnet.Network) {
				begun := time.Now()
				vain := make(chan error, 1)
				go func() {
					n, err := double.Call(t.Context(), group[blind], agent.Rank(1-blind), 1, agent.Timeout(0))
					vain <- errors.Join(err, want(2, n))
				}()
				synctest.Wait()
				require.Len(t, group[blind].PendingCalls(), 1)
				require.Equal(t, agent.CallConnecting, group[blind].PendingCalls()[0].State)
				n, err := double.Call(t.Context(), group[1-blind], agent.Rank(blind), 21, agent.Timeout(0))
				require.NoError(t, err)
				require.Equal(t, 42, n)
				require.NoError(t, <-vain)
				require.Zero(t, time.Since(begun), "nobody has waited for the one that does not come")
			}, simnet.HalfOpenAt(simnet.AfterFrames(0, simnet.Dialled, 0)))
		})
	}
}
