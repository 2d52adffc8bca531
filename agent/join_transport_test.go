package agent_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/thirdparty"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/netconn"
)

// TestOwnTransport checks that workers with a transport of the application's own, which they prefer
// to all others, call each other: over that transport if its connections carry sessions, and
// otherwise over TCP, with the reason in the plan.
func TestOwnTransport(t *testing.T) {
	for name, c := range map[string]struct {
		newConn func(net.Conn) transport.Conn
		want    string
	}{
		"without sessions": {nil, "uv"},
		"with sessions":    {func(c net.Conn) transport.Conn { return netconn.New(c.(*net.TCPConn)) }, "own"},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var plans []*pipe.Plan
			group := startGroup(t, 2, func(_ int, cfg *agent.Config) {
				cfg.Funcs = agent.Funcs{echo.Serve(func(_ context.Context, n int) (int, error) { return n, nil })}
				cfg.Listen = []string{"own://127.0.0.1:0", "uv://127.0.0.1:0"}
				cfg.NewContext = func(o pipe.Options) (*pipe.Context, error) {
					o.Events = &pipe.Events{Opened: func(i pipe.OpenedInfo) {
						mu.Lock()
						defer mu.Unlock()
						plans = append(plans, i.Plan)
					}}
					p := tensorpipe.DefaultProfile()
					p.Transports = append(p.Transports, pipe.TransportEntry{
						Name: "own", Priority: 1000, Transport: thirdparty.Transport{NewConn: c.newConn},
					})
					return p.NewContext(o)
				}
			})
			for i, a := range group {
				got, err := echo.Call(t.Context(), a, agent.Rank(1-i), 7)
				require.NoError(t, err)
				require.Equal(t, 7, got)
			}
			mu.Lock()
			defer mu.Unlock()
			require.NotEmpty(t, plans)
			for _, p := range plans {
				require.Equal(t, c.want, p.Transport)
				require.Equal(t, c.want == "uv", strings.Contains(p.String(), "its connections carry no session"), p)
			}
		})
	}
}
