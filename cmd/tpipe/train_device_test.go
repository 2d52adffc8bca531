package main

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cmd/tpipe/internal/train"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/cusim"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/safetensors"
)

// onGPUs returns a command that runs tpipe with the simulated driver, and options of it such as
// CUSIM_DEVICES=2.
func onGPUs(t *testing.T, options []string, args ...string) *exec.Cmd {
	t.Helper()
	lib := cusim.Library(t)
	cmd := program(t, args...)
	cmd.Env = append(append(cmd.Env, options...), "LD_LIBRARY_PATH="+filepath.Dir(lib))
	return cmd
}

// trainOnGPU runs tpipe train -json -device cuda:1 with args, and returns its result.
func trainOnGPU(t *testing.T, options []string, args ...string) *train.Result {
	t.Helper()
	cmd := onGPUs(t, options, append([]string{"train", "-json", "-device", "cuda:1"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Run(), stderr.String())
	require.Empty(t, stderr.String(), "the simulator has reported misuse")
	var r train.Result
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &r))
	return &r
}

// TestTrainOnGPU checks that a training on a GPU has the losses, the accuracy and the weights of one on the host, that
// the tensors of each process are on the GPU, and that they go between the processes through the channel that the driver
// permits.
func TestTrainOnGPU(t *testing.T) {
	flags := []string{"-epochs", "3", "-hidden", "16", "-batch", "200", "-lr", "0.3", "-init", smallWeights(t, 16)}
	onHost := filepath.Join(t.TempDir(), "host.safetensors")
	want := trainJSON(t, append(flags, "-save", onHost)...)
	for _, c := range []struct{ channel, transport, option string }{
		{"cuda_ipc", "auto", "CUSIM_DELAY_US=20"}, {"cuda_ipc", "tcp", "CUSIM_DEVICES=2"}, {"cuda_basic", "auto", "CUSIM_NO_IPC=1"},
	} {
		t.Run(c.channel+" "+c.transport, func(t *testing.T) {
			saved := filepath.Join(t.TempDir(), "saved.safetensors")
			got := trainOnGPU(t, []string{c.option}, append(flags, "-transport", c.transport, "-save", saved)...)
			require.InDeltaSlice(t, want.Losses, got.Losses, 1e-4)
			require.InDeltaSlice(t, want.TestAccuracy, got.TestAccuracy, 1e-4)
			require.Less(t, got.Losses[len(got.Losses)-1], got.Losses[0])
			require.Equal(t, "cuda:1", got.Config.Device)
			require.Len(t, got.Paths, 3)
			for _, p := range got.Paths {
				require.True(t, strings.HasSuffix(p.Path, "+"+c.channel), "%+v", p)
			}
			for i, w := range got.Workers {
				require.Equal(t, "cuda:1", w.Device, w.Name)
				require.Equal(t, want.Workers[i].GradientBytes, w.GradientBytes)
			}
			requireSameWeights(t, onHost, saved)
		})
	}
	for _, w := range want.Workers {
		require.Equal(t, "cpu:0", w.Device, w.Name)
	}
}

// requireSameWeights requires that two files have nearly the same weights.
func requireSameWeights(t *testing.T, want, got string) {
	t.Helper()
	a, _, err := safetensors.ReadFile(want, safetensors.Options{})
	require.NoError(t, err)
	b, _, err := safetensors.ReadFile(got, safetensors.Options{})
	require.NoError(t, err)
	require.Len(t, b, len(a))
	for name, w := range a {
		close, err := tensor.AllClose(w, b[name], 0, 1e-4)
		require.NoError(t, err)
		require.True(t, close, name)
	}
}

// TestTrainByHandOnGPU checks processes that are started by hand on a GPU, and that one which does not have
// the flag is an error.
func TestTrainByHandOnGPU(t *testing.T) {
	flags := []string{"train", "-rendezvous", freeport.Addr(t), "-group", "g", "-wait", "20s"}
	onGPU := append(flags, "-device", "cuda:0")
	var stages []*process
	for _, name := range train.Names[1:] {
		stages = append(stages, startCommand(t, onGPUs(t, nil, append(onGPU, "-name", name)...)))
	}
	p := startCommand(t, onGPUs(t, nil, append(onGPU, "-name", "trainer", "-json", "-epochs", "1", "-hidden", "9", "-batch", "500")...))
	stdout, stderr, code := p.wait()
	require.Zero(t, code, stderr)
	require.Equal(t, 3, strings.Count(stdout, "+cuda_ipc"), stdout)
	for _, s := range stages {
		_, stderr, code := s.wait()
		require.Zero(t, code, stderr)
	}

	flags[2] = freeport.Addr(t)
	onGPU[2] = flags[2]
	start(t, append(flags, "-name", "stage0")...)
	startCommand(t, onGPUs(t, nil, append(onGPU, "-name", "stage1")...))
	p = startCommand(t, onGPUs(t, nil, append(onGPU, "-name", "trainer")...))
	_, stderr, code = p.wait()
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "device map")
}

// TestTrainDeviceErrors checks the errors of devices that do not exist.
func TestTrainDeviceErrors(t *testing.T) {
	for _, name := range []string{"gpu", "cuda:x", "cpu:1", ""} {
		_, stderr, code := tpipe(t, "train", "-device", name)
		require.Equal(t, exitUsage, code, name)
		require.Contains(t, stderr, `-device "`+name+`": want cpu, or a GPU such as cuda:0`)
	}
	for option, want := range map[string]string{
		"CUSIM_DEVICES=2":      "tpipe train: -device cuda:5: there is no such device, but cuda:0, cuda:1\n",
		"CUSIM_NO_DEVICE=1":    "tpipe train: -device cuda:5: driver: CUDA is not viable: there is no device",
		"CUSIM_BAD_DEVICE=5":   "tpipe train: -device cuda:5: ",
		"LD_LIBRARY_PATH=/dev": "tpipe train: -device cuda:5: driver: CUDA is not viable: ",
	} {
		options := []string{option}
		if option == "CUSIM_BAD_DEVICE=5" {
			options = append(options, "CUSIM_DEVICES=6")
		}
		cmd := onGPUs(t, options, "train", "-device", "cuda:5")
		if strings.HasPrefix(option, "LD_") {
			cmd.Env = append(cmd.Env, option)
		}
		_, stderr, code := startCommand(t, cmd).wait()
		require.Equal(t, exitFailed, code, option)
		require.Contains(t, stderr, want, option)
	}
}
