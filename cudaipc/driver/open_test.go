package driver_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
)

// A machine without a driver, or a library that is none, gives a typed error with the reason, and
// the program goes on.
func TestOpenWithoutDriver(t *testing.T) {
	text := filepath.Join(t.TempDir(), "libcuda.so.1")
	require.NoError(t, os.WriteFile(text, []byte("no library"), 0o600))
	for name, c := range map[string]struct{ library, reason string }{
		"missing":      {filepath.Join(t.TempDir(), "libcuda.so.1"), "the driver's library cannot be loaded"},
		"not a binary": {text, "the driver's library cannot be loaded"},
		"another":      {"libc.so.6", "libc.so.6 has no function cu"},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := driver.Open(c.library)
			require.Nil(t, d)
			var reason *driver.NotViableError
			require.ErrorAs(t, err, &reason)
			require.ErrorIs(t, err, errors.ErrUnsupported)
			require.Contains(t, reason.Reason, c.reason)
		})
	}
}
