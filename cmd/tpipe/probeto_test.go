package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

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
