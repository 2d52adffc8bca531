package hugepage_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/hugepage"
)

// flags returns the kernel's flags (VmFlags of smaps) of the mapping that contains the address at.
func flags(t *testing.T, at uintptr) string {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	inside := false
	for line := range strings.Lines(string(maps)) {
		var from, to uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			inside = from <= at && at < to
		}
		if rest, ok := strings.CutPrefix(line, "VmFlags:"); ok && inside {
			return rest
		}
	}
	t.Fatal("no such mapping")
	return ""
}

// Large memory from Make is in a mapping for which huge pages were requested.
func TestMakeAdvises(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err != nil {
		t.Skip("a kernel without huge pages: ", err)
	}
	p := hugepage.Make(8 * hugepage.Size)
	inside := hugepage.Within(p)
	require.Contains(t, flags(t, uintptr(unsafe.Pointer(&inside[0]))), " hg")
}
