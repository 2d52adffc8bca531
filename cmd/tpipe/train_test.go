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
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cmd/tpipe/internal/train"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
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
	text, err := os.ReadFile("internal/train/testdata/digits_split_mlp.json")
	require.NoError(t, err)
	var want trainGolden
	require.NoError(t, json.Unmarshal(text, &want))
	weights, _, err := safetensors.ReadFile("../../tensor/safetensors/testdata/digits_split_mlp_final.safetensors", safetensors.Options{})
	require.NoError(t, err)
	transports := map[string]string{"shm": "shm+", "tcp": "uv+"}
	for transport, path := range race.Pick(transports, map[string]string{"tcp": "uv+"}) {
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
			require.Len(t, r.Paths, 3)
			for i, pair := range [][2]string{{"trainer", "stage0"}, {"trainer", "stage1"}, {"stage0", "stage1"}} {
				require.Equal(t, pair, [2]string{r.Paths[i].From, r.Paths[i].To})
				require.True(t, strings.HasPrefix(r.Paths[i].Path, path), r.Paths[i].Path)
			}
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
	worker := []string{"name", "pid", "calls", "gradient_messages", "gradient_bytes", "parameters", "device"}
	path := []string{"from", "to", "path"}
	want := []string{"losses", "test_accuracy", "steps", "steps_per_second", "paths"}
	want = append(append(append(want, path...), path...), path...)
	want = append(append(append(append(want, "workers"), worker...), worker...), worker...)
	want = append(want, "config", "hidden", "batch", "lr", "epochs", "seed", "init", "save", "transport", "device")
	require.Equal(t, want, names)
	var r train.Result
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Equal(t, train.Config{Hidden: 16, Batch: 300, LR: 0.1, Epochs: 2, Seed: 3, Transport: "auto", Device: "cpu"}, r.Config)
	require.Equal(t, 10, r.Steps)
	require.Len(t, r.Losses, 10)
	pids := map[int]bool{}
	parameters := 0
	for _, w := range r.Workers {
		pids[w.PID] = true
		parameters += w.Parameters
	}
	require.Len(t, pids, 3)
	require.Equal(t, 65*16+17*10, parameters)
	require.Equal(t, r.Losses, trainJSON(t, "-epochs", "2", "-hidden", "16", "-batch", "300", "-seed", "3").Losses)
	require.NotEqual(t, r.Losses[0], trainJSON(t, "-epochs", "1", "-hidden", "16", "-batch", "300").Losses[0])
}

// TestTrainOutput checks the output without -json, and the chart.
func TestTrainOutput(t *testing.T) {
	chart := filepath.Join(t.TempDir(), "train.svg")
	stdout, stderr, code := tpipe(t, "train", "-epochs", "4", "-hidden", "10", "-svg", chart)
	require.Zero(t, code, stderr)
	require.Empty(t, stderr, "no progress bar on other outputs than a terminal")
	for _, want := range []string{"epoch +loss  accuracy  steps/s\n", `\n    1 .* %  .*\n    2 .*\n    3 .*\n    4 .*\n`,
		`stage0 +\d+ +\d+ +2\d\d\.\d KiB in 180 messages +650\n`, `trainer - stage1: shm\+\w+\n`, `180 steps, \d+ a second: loss \d\.\d+, accuracy \d+\.\d %`, `\n   loss \+-{64} step 180\n$`} {
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
