package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestHello(t *testing.T) {
	var out strings.Builder
	require.NoError(t, hello(t.Context(), &out))
	require.Equal(t, "step 1: weight is f32[6]\n", out.String())
}
