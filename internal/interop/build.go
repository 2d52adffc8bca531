// Package interop lets tests exchange messages with the C++ TensorPipe library. The sources in the
// directory peer are a program, tppeer, which is the other end of a pipe; [Build] compiles it with
// the machine's compiler and [Start] runs it as a subprocess.
//
//	peer := interop.Start(t, "echo", "--listen", "uv://127.0.0.1:0")
//	p, err := c.Dial(ctx, peer.URL())
//
// [Generate] generates the same messages as tppeer, so that a test knows what must arrive without
// sending it first.
package interop

import (
	"embed"
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/tensorpipe-go/tensorpipe/internal/cxx"
)

// RequireVar is an environment variable. If it is "1", tests fail where the compiler or the library
// is missing; else they are skipped.
const RequireVar = "TENSORPIPE_REQUIRE_INTEROP"

//go:embed peer/*.h peer/*.cc
var sources embed.FS

var build = sync.OnceValues(cxx.Program{Name: "tppeer", Sources: sources, Folder: "peer"}.Build)

// Build returns the path of the program tppeer, which it compiles unless the user's cache has it.
// If the compiler or the library's header is missing it skips the test, or fails it if the
// environment variable RequireVar is "1". It fails the test after any other error, such as one of
// the compiler.
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
