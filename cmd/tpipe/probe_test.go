package main

import (
	"encoding/json"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
)

// planOf runs tpipe probe for the peer at url with the given flags, which must succeed, and returns
// its output.
func planOf(t *testing.T, url string, flags ...string) string {
	t.Helper()
	text, stderr, code := tpipe(t, append([]string{"probe", "-to", url}, flags...)...)
	require.Zero(t, code, stderr)
	require.Empty(t, stderr)
	return text
}

// TestProbeShowsSizes checks that a probe of a peer shows up to which size tensors are inline, and
// which channel is used for each size.
func TestProbeShowsSizes(t *testing.T) {
	_, url := startEcho(t, "-transport", "uv", "-channel", "mpt_uv,basic")
	require.Equal(t, `  dialect         native
  transport       uv
  inline          parts of up to 64 KiB, up to 1 MiB of a message
  cpu:0 to cpu:0  mpt_uv
  cpu:0 to cpu:0  basic below 1 MiB
`, planOf(t, url, "-transport", "uv", "-channel", "mpt_uv,basic"))
	require.Equal(t, `  dialect            compatible
  transport          uv
  cpu:0 to cpu:0     mpt_uv
  not channel basic  the server: cpu:0 to cpu:0: mpt_uv goes before it
`, planOf(t, url, "-transport", "uv", "-channel", "mpt_uv,basic", "-dialect", "compatible"))

	out, stderr, code := tpipe(t, "probe", "-to", url, "-transport", "uv", "-json")
	require.Zero(t, code, stderr)
	var plan pipe.Plan
	require.NoError(t, json.Unmarshal([]byte(out), &plan))
	require.Equal(t, 64<<10, plan.Inline)
	require.Equal(t, 1<<20, plan.InlineMessage)
	require.Len(t, plan.Channels, 2)
	require.Equal(t, 1<<20, plan.Channels[1].Below)
}

// TestProbeOfTheBestPath checks the plan of two ends with all defaults: shared memory and the
// channel cma, with the reason for each rejected candidate.
func TestProbeOfTheBestPath(t *testing.T) {
	for _, err := range []error{shm.New().Viable(), cma.New(cma.Options{}).Viable()} {
		if err != nil {
			t.Skip(err)
		}
	}
	_, url := startEcho(t)
	own := regexp.MustCompile(`"(shm:)?[^"]*-[^"]*"`) // values of this machine or of these processes
	require.Equal(t, `  dialect             native
  transport           shm
  inline              all parts of a message of up to 2 MiB
  cpu:0 to cpu:0      cma
  not transport uv    the server: shm goes before it
  not channel xth     the server: cpu:0 to cpu:0: the peer's "..." does not go with our "..."
  not channel mpt_uv  the server: mpt is not supported: the lanes are for pipes in the domain "uv:*", not "shm:..."
  not channel basic   the server: cpu:0 to cpu:0: cma goes before it
`, own.ReplaceAllString(planOf(t, url), `"$1..."`))
	require.Equal(t, `  dialect             native
  transport           uv
  inline              parts of up to 64 KiB, up to 1 MiB of a message
  cpu:0 to cpu:0      cma
  not channel xth     the server: cpu:0 to cpu:0: the peer's "..." does not go with our "..."
  not channel mpt_uv  the server: cpu:0 to cpu:0: cma goes before it
  not channel basic   the server: cpu:0 to cpu:0: cma goes before it
`, own.ReplaceAllString(planOf(t, url, "-transport", "uv"), `"$1..."`))
}

func TestProbeOfAPeer(t *testing.T) {
	_, url := startEcho(t, "-channel", "basic", "-dialect", "compatible")
	text, stderr, code := tpipe(t, "probe", "-to", url)
	require.Zero(t, code, stderr)
	for _, want := range []string{"compatible", "uv", "cpu:0 to cpu:0", "basic", "not channel xth", "not dialect native"} {
		require.Contains(t, text, want)
	}
	out, stderr, code := tpipe(t, "probe", "-to", url, "-json")
	require.Zero(t, code, stderr)
	var plan pipe.Plan
	require.NoError(t, json.Unmarshal([]byte(out), &plan))
	require.Equal(t, pipe.DialectCompatible, plan.Dialect)

	_, stderr, code = tpipe(t, "probe", "-to", "nonsense")
	require.Equal(t, 2, code)
	require.Contains(t, stderr, "-to")
}
