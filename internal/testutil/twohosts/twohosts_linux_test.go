package twohosts

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// The simulated host has its own addresses, and can be reached only while the link to it is up.
func TestOtherHost(t *testing.T) {
	h := New(t)
	out, err := h.Command("ip", "-o", "-4", "addr").CombinedOutput()
	require.NoError(t, err)
	require.Contains(t, string(out), h.There)
	require.NotContains(t, string(out), h.Here+"/")

	dial := func() error { // to a port at which nothing listens
		c, err := net.DialTimeout("tcp", h.There+":9", 200*time.Millisecond)
		if err == nil {
			_ = c.Close()
		}
		return err
	}
	require.ErrorContains(t, dial(), "refused")
	h.SetLink(t, false)
	require.ErrorContains(t, dial(), "timeout")
	h.SetLink(t, true)
	require.ErrorContains(t, dial(), "refused")
}
