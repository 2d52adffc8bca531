package hostile_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// resident is the size of this process's memory in bytes.
func resident(t testing.TB) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	require.NoError(t, err)
	var size, pages int
	_, err = fmt.Sscan(string(text), &size, &pages)
	require.NoError(t, err)
	return pages * os.Getpagesize()
}
