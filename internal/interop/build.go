// Package interop lets tests exchange messages with the C++ TensorPipe library
// that this project must understand. The sources in the directory peer make a
// program, tppeer, that plays the other end of a pipe; [Build] compiles it with
// the machine's compiler and [Start] runs it as a process of its own.
//
//	peer := interop.Start(t, "echo", "--listen", "uv://127.0.0.1:0")
//	p, err := c.Dial(ctx, peer.URL())
//
// [Generate] makes the same messages as tppeer does, so that a test knows what
// must arrive without sending it first.
package interop

import (
	"embed"
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/tensorpipe-go/tensorpipe/internal/cxx"
)

// RequireVar is the environment variable that turns a missing compiler or
// library from a reason to skip into a failure.
const RequireVar = "TENSORPIPE_REQUIRE_INTEROP"

//go:embed peer/*.h peer/*.cc
var sources embed.FS

var build = sync.OnceValues(cxx.Program{Name: "tppeer", Sources: sources, Folder: "peer"}.Build)

// Build compiles tppeer and returns the path of the program. It is kept in the
// user's cache under a hash of its sources. Where the compiler or the library
// is missing the test is skipped, or fails if RequireVar is set to 1.
func Build(t testing.TB) string {
	t.Helper()
	program, err := build()
	if missing, ok := errors.AsType[*cxx.MissingError](err); ok && os.Getenv(RequireVar) != "1" {
		t.Skip(missing)
	}
	if err != nil {
		t.Fatal(err)
	}
	return program
}
