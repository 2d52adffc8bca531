package uv_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// scopeVar is the environment variable that is set in the child process of againWithLinkLocal.
const scopeVar = "UV_TEST_LINK_LOCAL"

// againWithLinkLocal runs the test t again in a child process, in a network namespace whose
// loopback interface has a link-local address, and fails if the child fails. It needs root and
// iproute2, and skips t without them.
func againWithLinkLocal(t *testing.T) {
	t.Helper()
	require.Empty(t, os.Getenv(scopeVar), "the namespace has no link-local address")
	if os.Geteuid() != 0 {
		skip(t, "no interface has a link-local IPv6 address, and network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		skip(t, "no interface has a link-local IPv6 address, and network namespaces need iproute2: %v", err)
	}
	namespace := fmt.Sprintf("uvscope%d", os.Getpid())
	if out, err := ip("netns add " + namespace); err != nil {
		skip(t, "no interface has a link-local IPv6 address, and no network namespaces here: %v: %s", err, out)
	}
	t.Cleanup(func() { ip("netns del " + namespace) })
	for _, command := range []string{"link set lo up", "addr add fe80::77/64 dev lo nodad"} {
		out, err := ip("-n " + namespace + " " + command)
		require.NoError(t, err, "ip %s: %s", command, out)
	}
	cmd := exec.Command("ip", "netns", "exec", namespace, os.Args[0], "-test.v", "-test.count=1", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), scopeVar+"=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "--- PASS: "+t.Name())
}
