package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/rref"
)

// Line is y = A*x + B, or a step from one line to another.
type Line struct{ A, B float64 }

// Model is a line that workers fit. It stays on its owner, where the methods run, also concurrently.
type Model struct {
	mu      sync.Mutex
	line    Line
	updates int
}

// Read returns the line.
func (m *Model) Read(context.Context, agent.None) (Line, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.line, nil
}

// Update adds step to the line.
func (m *Model) Update(_ context.Context, step Line) (agent.None, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.line.A += step.A
	m.line.B += step.B
	m.updates++
	return agent.None{}, nil
}

// doNewModel is the function newModel, which runs on the owner of the model.
func doNewModel(context.Context, agent.None) (*Model, error) { return &Model{}, nil }

// updatesPerJob is the number of updates with which a worker trains: enough even if the other worker has
// ended before.
const updatesPerJob = 2000

// doTrain is the function train. It releases the reference that it has got. The error is that of fit.
func doTrain(ctx context.Context, job Job) (agent.None, error) {
	defer job.Model.Release(ctx)
	return fit(ctx, job)
}

// fit trains the model of job by gradient descent with its samples. Other workers may train the model
// at the same time. The error is that of a call.
func fit(ctx context.Context, job Job) (agent.None, error) {
	for range updatesPerJob {
		line, err := read.Call(ctx, job.Model, agent.None{})
		if err != nil {
			return agent.None{}, err
		}
		step, rate := Line{}, 0.2/float64(len(job.X))
		for _, x := range job.X {
			wrong := (3*x - 2) - (line.A*x + line.B)
			step.A += rate * wrong * x
			step.B += rate * wrong
		}
		if _, err := update.Call(ctx, job.Model, step); err != nil {
			return agent.None{}, err
		}
	}
	return agent.None{}, nil
}

// doEvaluate is the function evaluate: it returns the line as text, and releases the reference. The
// error is that of the call.
func doEvaluate(ctx context.Context, model *rref.Ref[*Model]) (string, error) {
	defer model.Release(ctx)
	line, err := read.Call(ctx, model, agent.None{})
	return fmt.Sprintf("y = %.2fx %+.2f", line.A, line.B), err
}
