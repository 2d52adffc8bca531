package main

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVersion(t *testing.T) {
	system := " " + runtime.GOOS + "/" + runtime.GOARCH
	for _, flag := range []string{"version", "-version", "--version"} {
		stdout, stderr, code := tpipe(t, flag)
		require.Zero(t, code, stderr)
		require.Empty(t, stderr)
		require.Regexp(t, `^tpipe \S+ `+runtime.Version()+system+"\n$", stdout)
	}
	for module, want := range map[string]string{"v0.3.1": "v0.3.1", "(devel)": "(devel)", "": "(devel)"} {
		info := &debug.BuildInfo{GoVersion: "go1.99", Main: debug.Module{Version: module}}
		require.Equal(t, "tpipe "+want+" go1.99"+system, versionText(info))
	}
}
