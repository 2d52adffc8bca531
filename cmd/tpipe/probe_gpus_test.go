package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A probe shows each GPU, which of them can access each other's memory, IPC, and the channels.
func TestProbeShowsGPUs(t *testing.T) {
	run := func(simulator ...string) string {
		out, stderr, code := tpipeOnGPUs(t, "probe", simulator...)
		require.Zero(t, code, stderr)
		return out
	}
	all := run("CUSIM_DEVICES=3")
	for _, want := range []string{
		`gpu +driver +yes +CUDA 11\.8\n`,
		`gpu +cuda:0 +yes +Simulated GPU 0, compute capability \d\.\d, [0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\n`,
		`gpu +cuda:2 IPC +yes +other processes can map its memory\n`,
		`gpu +cuda:0 and cuda:2 +yes `,
		`channel +cuda_ipc +yes +for GPUs, between processes\n`,
		`channel +cuda_basic +yes +for GPUs, through host memory\n`,
	} {
		require.Regexp(t, want, all)
	}
	require.NotContains(t, all, "cuda:3")

	restricted := run("CUSIM_DEVICES=2", "CUSIM_NO_P2P=1", "CUSIM_NO_IPC=1")
	require.Regexp(t, `gpu +cuda:0 IPC +no +cudaipc: cuda:0 has no handles for other processes\n`, restricted)
	require.Regexp(t, `channel +cuda_ipc +no +cudaipc: cuda:0 has no handles for other processes; cudaipc: cuda:1 has`, restricted)
	require.Regexp(t, `gpu +cuda:0 and cuda:1 +no +cudaipc: cuda:0 and cuda:1 cannot access each other's memory`, restricted)
	require.Regexp(t, `gpu +driver +no +driver: CUDA is not viable: there is no device`, run("CUSIM_NO_DEVICE=1"))
}
