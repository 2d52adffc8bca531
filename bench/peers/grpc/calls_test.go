package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseJob(t *testing.T) {
	got, err := parseJobs([]string{"add@64=1000", "bytes@1048576=5", "echo@8=1"})
	require.NoError(t, err)
	require.Equal(t, []job{{kindAdd, 64, 1000}, {kindBytes, 1 << 20, 5}, {kindEcho, 8, 1}}, got)
	for _, args := range [][]string{{}, {""}, {"add"}, {"add@1"}, {"add@1="}, {"add@1=0"}, {"add@0=1"}, {"bytes@268435457=1"}, {"add@1=1", "sub@1=1"}, {"echo@0=1"}} {
		_, err := parseJobs(args)
		require.Error(t, err, args)
	}
}
