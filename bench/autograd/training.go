package autograd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
)

const command = "github.com/tensorpipe-go/tensorpipe/cmd/tpipe"

// Training is the command tpipe train.
type Training struct{ program string }

// NewTraining builds the command into folder, which must stay as long as the Training is used.
func NewTraining(ctx context.Context, folder string) (*Training, error) {
	t := &Training{filepath.Join(folder, "tpipe")}
	if text, err := exec.CommandContext(ctx, "go", "build", "-o", t.program, command).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build %s: %w: %s", command, err, bytes.TrimSpace(text))
	}
	return t, nil
}

// Trained is what tpipe train prints.
type Trained struct {
	Losses         []float64 `json:"losses"`
	Steps          int       `json:"steps"`
	StepsPerSecond float64   `json:"steps_per_second"`
	Workers        []struct {
		Calls int `json:"calls"`
	} `json:"workers"`
}

// Run trains for that many epochs over a transport, shm or tcp.
func (t *Training) Run(ctx context.Context, transport string, epochs int) (*Trained, error) {
	cmd := exec.CommandContext(ctx, t.program, "train", "-json", "-transport", transport, "-epochs", strconv.Itoa(epochs))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("tpipe train: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	var r Trained
	return &r, json.Unmarshal(text, &r)
}

// CallsPerStep returns the number of calls of all workers divided by the number of steps, tests and
// clean-up included.
func (r *Trained) CallsPerStep() float64 {
	calls := 0
	for _, w := range r.Workers {
		calls += w.Calls
	}
	return float64(calls) / float64(r.Steps)
}
