package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestCalls(t *testing.T) {
	url := "file://" + t.TempDir() + "/store"
	served := make(chan error, 1)
	go func() { served <- work(t.Context(), 1, url, nil) }()
	var out strings.Builder
	require.NoError(t, work(t.Context(), 0, url, &out))
	require.NoError(t, <-served)
	require.Equal(t, "f32[2,2] ends with 40\n", out.String())
}
