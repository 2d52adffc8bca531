package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is the command version, which prints the version of this program.
type version struct{}

var versionEntry = entry{
	name:    "version",
	usage:   "",
	summary: "print the version of this program",
	help: `Prints one line: the version of the module, with the commit if it is no release; the
version of Go that built the program; and the system that it was built for. A commit
with "+dirty" had local changes; "(devel)" was built without version control.`,
	make: func() command { return version{} },
}

func (version) flags(*flag.FlagSet) {}

func (version) run(_ context.Context, s streams) error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return errors.New("the program was built without information about its version")
	}
	fmt.Fprintln(s.out, versionText(info))
	return nil
}

// versionText returns the version of the module, the version of Go and the system of this program,
// whose build is info, in one line. A module without a version has the version "(devel)".
func versionText(info *debug.BuildInfo) string {
	module := info.Main.Version
	if module == "" {
		module = "(devel)"
	}
	return fmt.Sprintf("tpipe %s %s %s/%s", module, info.GoVersion, runtime.GOOS, runtime.GOARCH)
}
