package cusim

import (
	"errors"
	"os"
	"testing"
)

// Require is the environment variable that, set to 1, makes [Library] fail a test where it would
// skip it.
const Require = "TENSORPIPE_REQUIRE_CUSIM"

// Library returns the path of the simulator, which it builds at first. It skips t, with the reason,
// if the machine cannot build the simulator, and fails t if [Require] is set or the build fails.
func Library(t testing.TB) string {
	t.Helper()
	lib, err := Build("")
	switch {
	case err == nil:
		return lib
	case errors.Is(err, errors.ErrUnsupported) && os.Getenv(Require) != "1":
		t.Skip(err)
	default:
		t.Fatal(err)
	}
	return ""
}
