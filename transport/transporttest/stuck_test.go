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

// stuck are transports on which a test blocks forever.
var stuck = []struct {
	name, run, output string
	modify            func(flawed) flawed
}{
	{
		"discards frames", "Frames/NoFrames", "not over after 200ms",
		wrapConns(func(c transport.Conn) transport.Conn { return writeDiscarder{c} }),
	},
	{
		"never accepts", "Transport/CloseListenerKeepsAccepted", "not over after 200ms",
		func(b flawed) flawed {
			b.beforeAccept = func(ctx context.Context) { <-ctx.Done() }
			return b
		},
	},
	{
		"ignores its context and Close", "Transport/CloseListenerKeepsAccepted",
		"panic: TestStuckTransport/Transport/CloseListenerKeepsAccepted is stuck",
		func(b flawed) flawed {
			b.beforeAccept = func(context.Context) { select {} }
			return b
		},
	},
}

// writeDiscarder discards frames without an error.
type writeDiscarder struct{ transport.Conn }

func (writeDiscarder) WriteFrames(...transport.Frame) error { return nil }

// TestSuiteIsBounded checks that the suite ends on transports on which a test blocks forever: the
// test fails with a message or, if closing everything does not end it, the process panics with the
// name of the test.
func TestSuiteIsBounded(t *testing.T) {
	for _, c := range stuck {
		t.Run(c.name, func(t *testing.T) {
			// With -test.v the output before a panic is printed.
			cmd := exec.Command(os.Args[0], "-test.v", "-test.timeout=25s", "-test.run=^TestStuckTransport$/"+c.run)
			cmd.Env = append(os.Environ(), "TRANSPORTTEST_STUCK="+c.name)
			out, err := cmd.CombinedOutput()
			require.Error(t, err)
			require.Contains(t, string(out), c.output)
			require.Regexp(t, "(--- FAIL|panic): TestStuckTransport/"+c.run, string(out))
			require.NotContains(t, string(out), "test timed out")
		})
	}
}

func TestStuckTransport(t *testing.T) {
	name := os.Getenv("TRANSPORTTEST_STUCK")
	if name == "" {
		t.Skip("runs in the subprocesses of TestSuiteIsBounded")
	}
	network := mem.NewNetwork()
	for _, c := range stuck {
		if c.name == name {
			transporttest.Run(t, transporttest.Backend{
				Name:    "stuck",
				New:     func(*testing.T) transport.Transport { return c.modify(flawed{Transport: mem.New(network)}) },
				Timeout: 200 * time.Millisecond,
			})
		}
	}
}
