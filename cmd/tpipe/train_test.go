package main

import (
	"encoding/json"
	"encoding/xml"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cmd/tpipe/internal/train"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/safetensors"
)

// trainGolden is a training by PyTorch.
type trainGolden struct {
	Hidden, Batch, Epochs int
	LR                    float64
	Losses                []float64
	TestAccuracy          []float64 `json:"test_accuracy"`
}

// TestTrainMatchesPyTorch checks that losses, final weights and accuracy are those of PyTorch in three
// processes, over each transport.
func TestTrainMatchesPyTorch(t *testing.T) {
	text, err := os.ReadFile("testdata/digits_split_mlp.json")
	require.NoError(t, err)
	var want trainGolden
	require.NoError(t, json.Unmarshal(text, &want))
	weights, _, err := safetensors.ReadFile("testdata/digits_split_mlp_final.safetensors", safetensors.Options{})
	require.NoError(t, err)
	for transport, path := range map[string]string{"shm": "shm+cma", "tcp": "uv+mpt_uv"} {
		t.Run(transport, func(t *testing.T) {
			saved := filepath.Join(t.TempDir(), "final.safetensors")
			r := trainJSON(t, "-transport", transport, "-init", "testdata/digits_split_mlp_init.safetensors", "-save", saved,
				"-hidden", strconv.Itoa(want.Hidden), "-batch", strconv.Itoa(want.Batch), "-epochs", strconv.Itoa(want.Epochs), "-lr", strconv.FormatFloat(want.LR, 'g', -1, 64))
			require.Equal(t, len(want.Losses), r.Steps)
			require.InEpsilonSlice(t, want.Losses, r.Losses, 1e-3)
			require.InDeltaSlice(t, want.TestAccuracy, r.TestAccuracy, 0.005)
			got, _, err := safetensors.ReadFile(saved, safetensors.Options{})
			require.NoError(t, err)
			require.Len(t, got, len(weights))
			for name, w := range weights {
				require.NotNil(t, got[name], name)
				close, err := tensor.AllClose(w, got[name], 0, 1e-3)
				require.NoError(t, err)
				require.True(t, close, name)
			}
			require.Equal(t, []train.Path{{From: "trainer", To: "stage0", Path: path}, {From: "trainer", To: "stage1", Path: path}, {From: "stage0", To: "stage1", Path: path}}, r.Paths)
		})
	}
}

// trainJSON runs tpipe train with -json and args, and returns its result, after it has checked that it is
// one line.
func trainJSON(t *testing.T, args ...string) *train.Result {
	t.Helper()
	stdout, stderr, code := tpipe(t, append([]string{"train", "-json"}, args...)...)
	require.Zero(t, code, stderr)
	require.Empty(t, stderr)
	require.Equal(t, 1, strings.Count(stdout, "\n"))
	var r train.Result
	d := json.NewDecoder(strings.NewReader(stdout))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&r))
	return &r
}

// TestTrainJSON checks the keys of the result, and that all workers are processes of their own.
func TestTrainJSON(t *testing.T) {
	stdout, stderr, code := tpipe(t, "train", "-json", "-epochs", "2", "-hidden", "16", "-batch", "300", "-seed", "3")
	require.Zero(t, code, stderr)
	keys := regexp.MustCompile(`"(\w+)":`)
	var names []string
	for _, k := range keys.FindAllStringSubmatch(stdout, -1) {
		names = append(names, k[1])
	}
	worker := []string{"name", "pid", "calls", "gradient_messages", "gradient_bytes", "parameters"}
	path := []string{"from", "to", "path"}
	want := []string{"losses", "test_accuracy", "steps", "steps_per_second", "paths"}
	want = append(append(append(want, path...), path...), path...)
	want = append(append(append(append(want, "workers"), worker...), worker...), worker...)
	want = append(want, "config", "hidden", "batch", "lr", "epochs", "seed", "init", "save", "transport")
	require.Equal(t, want, names)
	var r train.Result
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Equal(t, train.Config{Hidden: 16, Batch: 300, LR: 0.1, Epochs: 2, Seed: 3, Transport: "auto"}, r.Config)
	require.Equal(t, 10, r.Steps)
	require.Len(t, r.Losses, 10)
	pids := map[int]bool{}
	parameters := 0
	for _, w := range r.Workers {
		pids[w.PID] = true
		parameters += w.Parameters
		requireEnded(t, w.PID)
	}
	require.Len(t, pids, 3)
	require.Equal(t, 65*16+17*10, parameters)
	require.Equal(t, r.Losses, trainJSON(t, "-epochs", "2", "-hidden", "16", "-batch", "300", "-seed", "3").Losses)
	require.NotEqual(t, r.Losses[0], trainJSON(t, "-epochs", "1", "-hidden", "16", "-batch", "300").Losses[0])
}

// requireEnded waits until there is no process with that id.
func requireEnded(t *testing.T, pid int) {
	t.Helper()
	require.Eventually(t, func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH }, processTimeout, time.Millisecond)
}

// TestTrainOutput checks what is printed without -json, and the chart.
func TestTrainOutput(t *testing.T) {
	chart := filepath.Join(t.TempDir(), "train.svg")
	stdout, stderr, code := tpipe(t, "train", "-epochs", "4", "-hidden", "10", "-svg", chart)
	require.Zero(t, code, stderr)
	require.Empty(t, stderr, "no progress bar on other outputs than a terminal")
	for _, want := range []string{"epoch +loss  accuracy  steps/s\n", `\n    1 .* %  .*\n    2 .*\n    3 .*\n    4 .*\n`,
		`stage0 +\d+ +\d+ +2\d\d\.\d KiB in 180 messages +650\n`, `trainer - stage1: shm\+cma\n`, `180 steps, \d+ a second: loss \d\.\d+, accuracy \d+\.\d %`, `\n   loss \+-{64} step 180\n$`} {
		require.Regexp(t, want, stdout)
	}
	curve := regexp.MustCompile(`(?m)^ *(\d\.\d{3}) \|(.*)$`).FindAllStringSubmatch(stdout, -1)
	require.Len(t, curve, curveHeight)
	require.True(t, strings.HasPrefix(curve[0][2], "*"), "the first loss is the largest")
	text, err := os.ReadFile(chart)
	require.NoError(t, err)
	d := xml.NewDecoder(strings.NewReader(string(text)))
	for err == nil {
		_, err = d.Token()
	}
	require.ErrorIs(t, err, io.EOF)
	for _, want := range []string{"10 hidden units, batches of 32", ">loss<", ">accuracy on the other images<", "<polyline"} {
		require.Contains(t, string(text), want)
	}
}

// TestTrainCurve checks the curve on a terminal.
func TestTrainCurve(t *testing.T) {
	var out strings.Builder
	printCurve(&out, []float64{2, 1, 0})
	lines := strings.Split(out.String(), "\n")
	require.Equal(t, "  2.000 |*", lines[0])
	require.Equal(t, "  1.200 | *", lines[4])
	require.Equal(t, "  0.200 |  *", lines[9])
	require.Equal(t, "   loss +--- step 3", lines[10])
	out.Reset()
	printCurve(&out, []float64{0})
	require.Contains(t, out.String(), "  0.100 |*")
}

// startTraining starts a training that does not end, and returns it and the process of stage1, once
// the first steps are done.
func startTraining(t *testing.T, args ...string) (p *process, stage *os.Process) {
	t.Helper()
	p = start(t, append([]string{"train", "-epochs", "1000000"}, args...)...)
	var pid int
	require.Eventually(t, func() bool {
		pid = childWith(t, p.cmd.Process.Pid, "stage1")
		return pid != 0
	}, processTimeout, time.Millisecond)
	stage, err := os.FindProcess(pid)
	require.NoError(t, err)
	return p, stage
}

// children returns the processes whose parent has that id, with their command lines.
func children(t *testing.T, parent int) map[int]string {
	t.Helper()
	all := map[int]string{}
	folders, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	for _, folder := range folders {
		stat, err := os.ReadFile(folder + "/stat")
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if line, err := os.ReadFile(folder + "/cmdline"); err == nil && fields[1] == strconv.Itoa(parent) {
			pid, err := strconv.Atoi(filepath.Base(folder))
			require.NoError(t, err)
			all[pid] = strings.ReplaceAll(string(line), "\x00", " ")
		}
	}
	return all
}

// childWith returns the id of the child of parent whose command line has the word, or 0.
func childWith(t *testing.T, parent int, word string) int {
	t.Helper()
	for pid, line := range children(t, parent) {
		if strings.Contains(line, " "+word+" ") {
			return pid
		}
	}
	return 0
}

// TestTrainKilledStage checks that the death of a stage ends the training with an error that names it, and
// that no process is left.
func TestTrainKilledStage(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			p, stage := startTraining(t, "-transport", transport, "-hidden", "8", "-batch", "1437")
			p.lineWith("epoch")
			all := children(t, p.cmd.Process.Pid)
			require.Len(t, all, 2)
			require.NoError(t, stage.Kill())
			_, stderr, code := p.wait()
			require.Equal(t, exitFailed, code, stderr)
			require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
			require.Contains(t, stderr, "stage1")
			for pid := range all {
				requireEnded(t, pid)
			}
		})
	}
}

// TestTrainInterrupted checks that SIGINT, also to all processes as a terminal sends it, ends the training
// with exit code 130, and that no process is left. The death of the trainer ends the stages too.
func TestTrainInterrupted(t *testing.T) {
	for name, signals := range map[string]struct {
		signal syscall.Signal
		all    bool
		code   int
	}{"one": {syscall.SIGINT, false, exitInterrupted}, "all": {syscall.SIGINT, true, exitInterrupted}, "killed": {syscall.SIGKILL, false, -1}} {
		t.Run(name, func(t *testing.T) {
			p, _ := startTraining(t, "-hidden", "8")
			all := children(t, p.cmd.Process.Pid)
			require.Eventually(t, func() bool { all = children(t, p.cmd.Process.Pid); return len(all) == 2 }, processTimeout, time.Millisecond)
			if signals.all {
				p.lineWith("epoch")
				for pid := range all {
					require.NoError(t, syscall.Kill(pid, signals.signal))
				}
			}
			p.signal(signals.signal)
			_, stderr, code := p.wait()
			require.Equal(t, signals.code, code, stderr)
			for pid := range all {
				requireEnded(t, pid)
			}
		})
	}
}

// TestTrainByHand checks that the three processes can be started by hand, over TLS too, and that the
// losses are those of one command.
func TestTrainByHand(t *testing.T) {
	want := trainJSON(t, "-epochs", "1", "-hidden", "9", "-batch", "500", "-init", smallWeights(t, 9)).Losses
	ours := newAuthority(t)
	cert, key := ours.member(t, "group", false)
	for name, flags := range map[string][]string{
		"plain": nil, "tcp": {"-transport", "tcp"}, "tls": {"-transport", "tcp", "-tls-cert", cert, "-tls-key", key, "-tls-ca", ours.file, "-tls-name", "group.example"},
	} {
		t.Run(name, func(t *testing.T) {
			flags := append([]string{"train", "-rendezvous", freeport.Addr(t), "-group", "g"}, flags...)
			saved := filepath.Join(t.TempDir(), "saved.safetensors")
			stage0 := start(t, append(flags, "-name", "stage0", "-init", smallWeights(t, 9), "-save", saved)...)
			stage1 := start(t, append(flags, "-name", "stage1", "-init", smallWeights(t, 9))...)
			stdout, stderr, code := tpipe(t, append(flags, "-name", "trainer", "-json", "-epochs", "1", "-hidden", "9", "-batch", "500")...)
			require.Zero(t, code, stderr)
			var r train.Result
			require.NoError(t, json.Unmarshal([]byte(stdout), &r))
			require.InEpsilonSlice(t, want, r.Losses, 1e-5)
			for i, p := range []*process{stage0, stage1} {
				stdout, stderr, code := p.wait()
				require.Zero(t, code, stderr)
				require.Equal(t, []string{"ready as stage0 (rank 1)\n", "ready as stage1 (rank 2)\n"}[i], stdout)
			}
			require.NoError(t, train.CheckFile(saved, 9))
		})
	}
}

// TestTrainByHandWithoutTrainer checks that stages end with an error when the trainer has been killed.
func TestTrainByHandWithoutTrainer(t *testing.T) {
	flags := []string{"train", "-rendezvous", "file://" + filepath.Join(t.TempDir(), "store")}
	stages := []*process{start(t, append(flags, "-name", "stage0")...), start(t, append(flags, "-name", "stage1")...)}
	p := start(t, append(flags, "-name", "trainer", "-epochs", "1000000", "-hidden", "8")...)
	p.lineWith("epoch")
	p.signal(syscall.SIGKILL)
	for _, s := range stages {
		_, stderr, code := s.wait()
		require.Equal(t, exitFailed, code, stderr)
		require.Contains(t, stderr, "the trainer has gone")
	}
	p.wait()
}

// TestReadmeCommands checks that the commands in README.md exist, and that the first one is train.
func TestReadmeCommands(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	lines := regexp.MustCompile(`(?m)^go run ./cmd/tpipe (\w+)`).FindAllStringSubmatch(string(readme), -1)
	require.NotEmpty(t, lines)
	require.Equal(t, trainEntry.name, lines[0][1])
	for _, line := range lines {
		_, known := lookup(line[1])
		require.True(t, known, line[0])
	}
}

// smallWeights returns the path of a file with weights of a network with that many hidden units, which
// are the same in each call.
func smallWeights(t *testing.T, hidden int) string {
	t.Helper()
	weights := map[string]*tensor.Tensor{}
	for name, shape := range map[string][]int{"stage0.weight": {hidden, train.Pixels}, "stage0.bias": {hidden}, "stage1.weight": {train.Classes, hidden}, "stage1.bias": {train.Classes}} {
		w, err := tensor.Zeros(tensor.F32, shape...)
		require.NoError(t, err)
		values, err := tensor.MutableData[float32](w)
		require.NoError(t, err)
		for i := range values {
			values[i] = float32(math.Sin(float64(i)) / 10)
		}
		weights[name] = w
	}
	path := filepath.Join(t.TempDir(), "weights.safetensors")
	require.NoError(t, safetensors.WriteFile(path, weights, nil))
	return path
}

// TestTrainErrors checks the errors of bad flags and files.
func TestTrainErrors(t *testing.T) {
	folder := t.TempDir()
	bad := filepath.Join(folder, "bad")
	require.NoError(t, os.WriteFile(bad, []byte("no tensors"), 0o600))
	for line, want := range map[string]string{
		"-hidden 0":                              "-hidden 0: want 1 to 65536",
		"-hidden 1000000000":                     "want 1 to 65536",
		"-batch 0":                               "-batch 0: want 1 to 1437",
		"-batch 1438":                            "want 1 to 1437",
		"-lr 0":                                  "-lr 0: want more than 0",
		"-lr NaN":                                "-lr NaN: want more than 0",
		"-lr +Inf":                               "want more than 0",
		"-epochs 0":                              "-epochs 0: want 1 to",
		"-seed -1":                               "seed",
		"-transport pigeon":                      `-transport "pigeon": want auto, shm, tcp`,
		"-name stage2":                           `-name "stage2": want trainer, stage0, stage1`,
		"-rendezvous x:1":                        "-rendezvous: give -name too",
		"-name stage0 -lr 1":                     "-lr: it is a flag of the trainer",
		"-name trainer -init x":                  "-init: it is a flag of the stages",
		"-name stage1 -save x":                   "-save: stage0 writes the file",
		"-name trainer -transport shm -tls-ca x": "-transport shm: it has no TLS",
		"more":                                   `"more" is not a flag`,
	} {
		_, stderr, code := tpipe(t, append([]string{"train"}, strings.Fields(line)...)...)
		require.Equal(t, exitUsage, code, line)
		require.Contains(t, stderr, want, line)
	}
	for line, want := range map[string]string{
		"-init " + folder + "/none": "-init: stat " + folder + "/none: no such file",
		"-init " + bad:              "-init: " + bad + ": ",
		"-init testdata/digits_split_mlp_init.safetensors -hidden 64": "stage0.weight is F32[128 64], want F32[64 64]",
		"-save " + folder + "/no/file":                                "-save: stat " + folder + "/no: no such file",
		"-save " + folder:                                             "-save: " + folder + " is not a regular file",
		"-svg " + folder:                                              "-svg: ",
		"-lr 1e30 -svg " + folder + "/x.svg":                          "the loss is not finite: choose a smaller -lr",
	} {
		stdout, stderr, code := tpipe(t, append([]string{"train", "-json"}, strings.Fields(line)...)...)
		require.Equal(t, exitFailed, code, line)
		require.Contains(t, stderr, want, line)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
		require.Empty(t, stdout)
	}
	require.NoFileExists(t, folder+"/x.svg")
}
