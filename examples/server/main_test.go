package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestServer(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out))
	require.Equal(t, "weight: f32[2,3], 24 bytes on cpu:0\nbias: f32[], 4 bytes on cpu:0\nthere is no colour\n", out.String())
}
