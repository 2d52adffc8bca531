package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/channel/cma"
)

// barrier returns nil if the kernel lets processes read each other's memory, and otherwise the
// reason why not. It does not ask the channel cma, so that a fault of the channel cannot skip a
// test.
func barrier() error {
	scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if text := strings.TrimSpace(string(scope)); err == nil && text != "0" {
		return fmt.Errorf("Yama keeps processes apart: ptrace_scope is %s", text)
	}
	memory := []byte("read    ") // on the heap, so that it does not move
	to := []unix.Iovec{{Base: &memory[4], Len: 4}}
	from := []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&memory[0])), Len: 4}}
	if _, err := unix.ProcessVMReadv(os.Getpid(), to, from, 0); err != nil {
		return fmt.Errorf("process_vm_readv: %w", err)
	}
	if string(memory) != "readread" {
		return fmt.Errorf("process_vm_readv has read %q", memory)
	}
	return nil
}

// TestProbeOfDirectCopies checks that a probe reports the channel cma as working if the kernel lets
// processes read each other's memory.
func TestProbeOfDirectCopies(t *testing.T) {
	if err := barrier(); err != nil {
		t.Skip("direct copies do not work here: ", err)
	}
	stdout, stderr, code := tpipe(t, "probe", "-json")
	require.Zero(t, code, stderr)
	var f findings
	require.NoError(t, json.Unmarshal([]byte(stdout), &f))
	require.True(t, slices.ContainsFunc(f.Channels, func(one finding) bool { return one.Name == cma.Name && one.Works }), stdout)
}
