package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/bench"
	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/cusim"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
)

// tpipeOnGPUs runs tpipe with the arguments in line on simulated GPUs. simulator has options of the
// simulator, as NAME=value.
func tpipeOnGPUs(t *testing.T, line string, simulator ...string) (stdout, stderr string, code int) {
	t.Helper()
	lib := cusim.Library(t)
	cmd := program(t, strings.Fields(line)...)
	cmd.Env = append(cmd.Env, append(simulator, "LD_LIBRARY_PATH="+filepath.Dir(lib))...)
	return startCommand(t, cmd).wait()
}

// requireOnGPUs checks the JSON of a bench on GPUs with the sizes 8 and 64 KiB, and returns the results of
// this library.
func requireOnGPUs(t *testing.T, line string, devices ...string) (out []bench.Result) {
	t.Helper()
	stdout, stderr, code := tpipeOnGPUs(t, line+" -size 8,64KiB")
	require.Zero(t, code, stderr)
	require.Empty(t, stderr)
	copies, ratios := 0, 0
	for text := range strings.Lines(stdout) {
		var r bench.Result
		var ratio benchRatios
		require.NoError(t, json.Unmarshal([]byte(text), &r))
		require.NoError(t, json.Unmarshal([]byte(text), &ratio))
		switch r.Subject {
		case "tensorpipe-go/devicecopy":
			ratios++
			require.Positive(t, *ratio.Rate)
			continue
		case "devicecopy":
			copies++
			require.Equal(t, 64<<10, r.SizeBytes)
			require.Positive(t, r.GBps)
		default:
			require.Equal(t, "tensorpipe-go", r.Subject, text)
			require.Equal(t, []string{r.Channel, r.Channel}, []string{r.TripRoute, r.OneWayRoute}, text)
			for _, p := range []*bench.Percentiles{r.RTT, r.Cold, r.HandOver} {
				require.Positive(t, p.P50)
				require.LessOrEqual(t, p.P50, p.P90)
				require.LessOrEqual(t, p.P90, p.P99)
			}
			require.Positive(t, r.GBps)
			out = append(out, r)
		}
		require.Equal(t, devices, []string{r.Device.String(), r.ServerDevice.String()})
	}
	require.Equal(t, []int{len(out) / 2, len(out) / 2}, []int{copies, ratios}, stdout)
	return out
}

// TestBenchOnGPUs checks that a bench with -device measures each channel between two processes in both
// dialects, with tensors on GPUs, and compares the large ones with the driver's copies.
func TestBenchOnGPUs(t *testing.T) {
	for _, dialect := range []string{"native", "compatible"} {
		var channels []string
		for _, r := range requireOnGPUs(t, "bench -json -device cuda:1 -channel cuda_ipc,cuda_basic -count 3 -dialect "+dialect, "cuda:1", "cuda:1") {
			require.Equal(t, dialect, string(r.Dialect))
			require.Equal(t, 2, r.Processes)
			channels = append(channels, r.Channel)
		}
		require.Equal(t, []string{cudaipc.IPCName, cudaipc.IPCName, cudaipc.BasicName, cudaipc.BasicName}, channels)
	}
}

// TestBenchOnTwoGPUs checks that a bench with two devices has the tensors of this process on the first one
// and those of the second process on the other one. The channel cuda_xth has both ends in one process.
func TestBenchOnTwoGPUs(t *testing.T) {
	for i, r := range requireOnGPUs(t, "bench -json -named -device cuda:0,cuda:2 -channel auto,cuda_xth -count 3", "cuda:0", "cuda:2") {
		require.Equal(t, []string{cudaipc.IPCName, cudaipc.IPCName, bench.XTHGPUs, bench.XTHGPUs}[i], r.Channel)
		require.Equal(t, []int{2, 2, 1, 1}[i], r.Processes)
		require.True(t, r.Named)
	}
}

// TestBenchTableOnGPUs checks the table and the chart of a bench on GPUs, and the reason for a path that
// does not exist.
func TestBenchTableOnGPUs(t *testing.T) {
	svg := filepath.Join(t.TempDir(), "gpus.svg")
	stdout, stderr, code := tpipeOnGPUs(t, "bench -device cuda:0,cuda:1 -transport uv -channel cuda_ipc,cuda_basic -size 0,8,64KiB -count 3 -svg "+svg, "CUSIM_NO_P2P=1")
	require.Zero(t, code, stderr)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	require.Len(t, lines, 7)
	require.Equal(t, "transport uv, channel cuda_ipc: not measured: channel cuda_ipc: cudaipc: cuda:0 and cuda:1 cannot access each other's memory: unsupported operation", lines[0])
	require.Regexp(t, "^transport uv, channel cuda_basic, native dialect, 8 in flight, memory of cuda:0, cuda:1(, congestion control [a-z]+)?$", lines[2])
	require.Equal(t, strings.Fields("size p50 p90 p99 cold p50 CPU hand-over one way CPU of copy via"), strings.Fields(lines[3]))
	require.Regexp(t, " - +-$", lines[4], "without a tensor")
	require.Regexp(t, " - +cuda_basic$", lines[5])
	require.Regexp(t, ` +[\d.]+ [um]?s +[\d.]+ GB/s +[\d.e-]+ s/GB +\d+\.\d\d \([\d.]+\) cuda_basic$`, lines[6])
	drawn, err := os.ReadFile(svg)
	require.NoError(t, err)
	require.Contains(t, string(drawn), "uv/cuda_basic, tensorpipe-go (native)")
	require.Contains(t, string(drawn), "devicecopy, 64 KiB")
}

// TestBenchDeviceFlags checks the errors about -device, which are found before anything is measured.
func TestBenchDeviceFlags(t *testing.T) {
	for line, want := range map[string]string{
		"gpu:0":                  "want GPUs, such as cuda:0",
		"cpu:0":                  "want GPUs, such as cuda:0, or no -device for host memory",
		"cuda:x":                 `"cuda:x" has a bad index`,
		"cuda:0,cuda:1,cuda:2":   "want one device, or one for each of the two processes",
		"cuda:0 -buffers huge":   "-buffers does not fit with -device: the messages are in memory of the GPU",
		"cuda:0 -compress s2":    "-compress does not fit with -device: tensors on GPUs are not compressed",
		"cuda:0 -lanes 2":        "-lanes does not fit with -device: no channel for GPUs is mpt_uv",
		"cuda:0 -peer-channel x": "-peer does not fit with -device: libtensorpipe is measured with host memory only",
		"cuda:0 -channel cma":    `-channel: there is no channel "cma", only auto, cuda_ipc, cuda_basic, cuda_xth`,
		"cuda:0 -transport ibv":  `-transport: there is no transport "ibv"`,
		"cuda:0 -allow-any-tracer": "-allow-any-tracer does not fit with -device: " +
			"no channel for GPUs is cma",
	} {
		stdout, stderr, code := tpipe(t, append([]string{"bench", "-device"}, strings.Fields(line)...)...)
		require.Equal(t, exitUsage, code, line)
		require.Empty(t, stdout, line)
		require.Contains(t, stderr, want, line)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	}
	_, stderr, code := tpipe(t, strings.Fields("bench -channel cuda_ipc")...)
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, `there is no channel "cuda_ipc"`)
}

// TestBenchDeviceIsMissing checks the errors about GPUs that do not exist or do not work: a device that the
// machine does not have is a usage error.
func TestBenchDeviceIsMissing(t *testing.T) {
	for _, c := range []struct {
		devices, simulator, want string
		code                     int
	}{
		{"cuda:0,cuda:3", "CUSIM_DEVICES=2", "tpipe bench: -device: there is no cuda:3, only cuda:0, cuda:1\n", exitUsage},
		{"cuda:0", "CUSIM_NO_DEVICE=1", "tpipe bench: driver: CUDA is not viable: there is no device: driver: cuInit: CUDA_ERROR_NO_DEVICE\n", exitFailed},
		{"cuda:1", "CUSIM_BAD_DEVICE=1", "tpipe bench: cudaipc: cuda:1 cannot be used: driver: cuDevicePrimaryCtxRetain: CUDA_ERROR_DEVICE_UNAVAILABLE\n", exitFailed},
	} {
		stdout, stderr, code := tpipeOnGPUs(t, "bench -count 1 -size 8 -device "+c.devices, c.simulator)
		require.Equal(t, c.code, code)
		require.Empty(t, stdout)
		require.Equal(t, c.want, stderr)
	}
	// The context of the other process's GPU is initialised after the handshake.
	_, stderr, code := tpipeOnGPUs(t, "bench -count 1 -size 8 -device cuda:0,cuda:1", "CUSIM_BAD_DEVICE=1")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, `peer closed the pipe: its reason: "cudaipc: cuda:1 cannot be used: driver: cuDevicePrimaryCtxRetain: CUDA_ERROR_DEVICE_UNAVAILABLE"`)
}

// A program without a driver, or built without CUDA, starts, and its commands for GPUs fail with the reason.
func TestWithoutDriver(t *testing.T) {
	_, why := driver.Open("")
	if why == nil {
		t.Skip("this machine has a driver")
	}
	_, stderr, code := tpipe(t, "bench", "-device", "cuda:0")
	require.Equal(t, exitFailed, code)
	require.Equal(t, "tpipe bench: "+why.Error()+"\n", stderr)

	stdout, stderr, code := tpipe(t, "probe")
	require.Zero(t, code, stderr)
	require.Empty(t, stderr)
	require.Regexp(t, `gpu +driver +no +driver: CUDA is not viable: (the driver's library cannot be loaded: libcuda\.so\.1|this program was built without CUDA)`, stdout)
	require.NotContains(t, stdout, "cuda_ipc")
}
