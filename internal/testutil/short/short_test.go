package short_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
)

// inChild is the environment variable with which the test binary calls SkipPackage.
const inChild = "SHORT_TEST_SKIP_PACKAGE"

func TestMain(m *testing.M) {
	if os.Getenv(inChild) != "" {
		short.SkipPackage("it is slow")
	}
	leakcheck.Main(m)
}

func TestSkip(t *testing.T) {
	ran := false
	t.Run("long", func(t *testing.T) {
		short.Skip(t, "it is slow")
		ran = true
	})
	require.Equal(t, !testing.Short(), ran)
}

func TestSkipPackage(t *testing.T) {
	for flag, want := range map[string]string{"-test.short=true": "left out with -short: it is slow\n", "-test.short=false": "PASS\n"} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestSkip$", flag)
		cmd.Env = append(os.Environ(), inChild+"=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		require.Contains(t, string(out), want)
	}
}
