package cma

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// The device descriptor has the same form as one recorded from TensorPipe,
// cma:4314c807-d1f2-4ebb-9432-c0a43a41d690_4_effffffc_4_effffffd_0_0_1fffeffffff, and ends before
// the capabilities if the kernel does not compare these.
func TestDescriptor(t *testing.T) {
	f := New(Options{Root: machine(t, "capability", "")})
	require.NoError(t, f.Viable())
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	permitted := strings.TrimLeft(regexp.MustCompile(`CapPrm:\s*([0-9a-f]+)`).FindStringSubmatch(string(status))[1], "0")
	if permitted == "" {
		permitted = "0"
	}
	form := fmt.Sprintf(`^cma:[0-9a-f-]{36}_[0-9a-f]+_[0-9a-f]+_[0-9a-f]+_[0-9a-f]+_%d_%d_%s$`, os.Getuid(), os.Getgid(), permitted)
	text := f.DeviceDescriptors()[device.CPU()]
	require.Regexp(t, form, text)

	without := New(Options{Root: machine(t, "landlock,selinux", "")})
	require.NoError(t, without.Viable())
	require.Equal(t, strings.TrimSuffix(text, "_"+permitted), without.DeviceDescriptors()[device.CPU()])
}

// machine returns a new directory that serves as the root of a simulated machine. It has a file
// with the list of security modules and one with Yama's scope; a file whose content would be empty
// is missing.
func machine(t *testing.T, modules, scope string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{modulesFile: modules, scopeFile: scope} {
		if text == "" {
			continue
		}
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return root
}

// On simulated machines with different security modules and scopes of Yama, the channel is viable,
// or not viable with the expected reason.
func TestYama(t *testing.T) {
	for _, c := range []struct {
		modules, scope string
		allow          bool
		why            string // the reason, empty if viable
	}{
		{"capability,yama", "0\n", false, ""},
		{"capability,landlock,yama,bpf", "1\n", false, "ptrace_scope is 1"},
		{"capability,yama", "1\n", true, ""},
		{"capability,yama", "2\n", true, "ptrace_scope is 2"},
		{"capability,yama", "3\n", true, "ptrace_scope is 3"},
		{"capability,yama", "", true, "Yama's scope"},
		{"capability,yama", "what?", true, "ptrace_scope is what?"},
		{"capability", "1\n", false, ""}, // Yama is built in but not active
		{"", "", false, ""},
		{"", "0\n", false, ""},
		{"", "1\n", false, "ptrace_scope is 1"},
	} {
		t.Run(fmt.Sprintf("%s scope %q allow %v", c.modules, c.scope, c.allow), func(t *testing.T) {
			f := New(Options{Root: machine(t, c.modules, c.scope), AllowAnyTracer: c.allow})
			if c.why == "" {
				require.NoError(t, f.Viable())
				require.NotEmpty(t, f.DeviceDescriptors())
				return
			}
			require.ErrorIs(t, f.Viable(), transport.ErrNotSupported)
			require.ErrorContains(t, f.Viable(), c.why)
			require.Empty(t, f.DeviceDescriptors())
		})
	}
}
