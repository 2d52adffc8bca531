package transporttest_test

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
	"github.com/tensorpipe-go/tensorpipe/transport/transporttest"
)

// stuck are transports on which a test waits for what never comes.
var stuck = []struct {
	name, run, says string
	bend            func(bent) bent
}{
	{
		"swallows frames", "Frames/NoFrames", "not over after 200ms",
		bendConn(func(c transport.Conn) transport.Conn { return swallower{c} }),
	},
	{
		"accepts nobody", "Transport/CloseListenerSparesTheAccepted", "not over after 200ms",
		func(b bent) bent {
			b.beforeAccept = func(ctx context.Context) { <-ctx.Done() }
			return b
		},
	},
	{
		"is deaf to everything", "Transport/CloseListenerSparesTheAccepted",
		"panic: TestStuckVictim/Transport/CloseListenerSparesTheAccepted is stuck",
		func(b bent) bent {
			b.beforeAccept = func(context.Context) { select {} }
			return b
		},
	},
}

// swallower promises everything.
type swallower struct{ transport.Conn }

func (swallower) WriteFrames(...transport.Frame) error { return nil }

// The test that is stuck fails and says so; the run goes on, or at least ends.
func TestSuiteIsNotStuck(t *testing.T) {
	for _, c := range stuck {
		t.Run(c.name, func(t *testing.T) {
			// With -test.v what is said before a panic is not lost.
			cmd := exec.Command(os.Args[0], "-test.v", "-test.timeout=25s", "-test.run=^TestStuckVictim$/"+c.run)
			cmd.Env = append(os.Environ(), "TRANSPORTTEST_STUCK="+c.name)
			out, err := cmd.CombinedOutput()
			require.Error(t, err)
			require.Contains(t, string(out), c.says)
			require.Regexp(t, "(--- FAIL|panic): TestStuckVictim/"+c.run, string(out))
			require.NotContains(t, string(out), "test timed out")
		})
	}
}

func TestStuckVictim(t *testing.T) {
	name := os.Getenv("TRANSPORTTEST_STUCK")
	if name == "" {
		t.Skip("the other process of TestSuiteIsNotStuck")
	}
	network := mem.NewNetwork()
	for _, c := range stuck {
		if c.name == name {
			transporttest.Run(t, transporttest.Backend{
				Name:     "stuck",
				New:      func(*testing.T) transport.Transport { return c.bend(bent{Transport: mem.New(network)}) },
				Patience: 200 * time.Millisecond,
			})
		}
	}
}
