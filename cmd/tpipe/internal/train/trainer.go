package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Config is the settings of a training, which are part of its result.
type Config struct {
	Hidden    int     `json:"hidden"` // units
	Batch     int     `json:"batch"`  // rows of a step
	LR        float64 `json:"lr"`
	Epochs    int     `json:"epochs"`
	Seed      uint64  `json:"seed"` // of the initial parameters, if Init is empty
	Init      string  `json:"init"`
	Save      string  `json:"save"`
	Transport string  `json:"transport"`
	Device    string  `json:"device"` // of all workers
}

// Path is how two workers exchange messages, such as "shm+cma": the transport, and the channel for large
// tensors, which is that between their GPUs if they have some.
type Path struct {
	From string `json:"from"`
	To   string `json:"to"`
	Path string `json:"path"`
}

// Result is the result of a training.
type Result struct {
	Losses         []float64      `json:"losses"`           // by step
	TestAccuracy   []float64      `json:"test_accuracy"`    // by epoch
	Steps          int            `json:"steps"`            // in all epochs
	StepsPerSecond float64        `json:"steps_per_second"` // tests included
	Paths          []Path         `json:"paths"`            // between each pair
	Workers        []WorkerResult `json:"workers"`          // by rank
	Config         Config         `json:"config"`
}

// Progress is what Run reports after each step.
type Progress struct {
	Epoch, Step, Steps int // Epoch and Step are finished, from 1 on
	Loss               float64
	Accuracy           float64 // of the last test, or NaN
	Tested             bool    // the step was the last one of an epoch
	Took               time.Duration
}

// StepError is the error of a step. Step counts from 1.
type StepError struct {
	Step int
	Err  error
}

func (e *StepError) Error() string { return fmt.Sprintf("step %d: %v", e.Step, e.Err) }
func (e *StepError) Unwrap() error { return e.Err }

// ErrDiverged is the error of a step whose loss is not a finite number.
var ErrDiverged = errors.New("the loss is not finite: choose a smaller -lr")

// network is the references of the trainer to the network.
type network struct {
	agent  *agent.Agent
	layers [2]*rref.Ref[*layer]
	params [2][]*rref.Ref[*autograd.Variable]
	sgd    *dist.Optimizer
}

// Run trains a network from the worker of a, the trainer p, and tests it after each epoch. It calls
// report after each step. In the end it has the stages finish. The result has no Paths. The error is a
// *StepError, one of the device, or that of a call, which names the stage.
func (p *Part) Run(ctx context.Context, a *agent.Agent, c Config, report func(Progress)) (*Result, error) {
	training, test, err := Load()
	if err != nil {
		return nil, err
	}
	if ctx, err = p.onDevice(ctx); err != nil {
		return nil, err
	}
	if training, err = p.placeAll(ctx, training); err != nil {
		return nil, err
	}
	if test, err = p.placeAll(ctx, test); err != nil {
		return nil, err
	}
	n, err := newNetwork(ctx, a, c)
	if err != nil {
		return nil, err
	}
	r := &Result{Config: c}
	if err := n.train(ctx, training, test, r, report); err != nil {
		return nil, err
	}
	if _, err := save.Call(ctx, a, Stage0, n.params[1]); err != nil {
		return nil, err
	}
	if r.Workers, err = p.describeAll(ctx, a); err != nil {
		return nil, err
	}
	r.Workers[0].Device = training.X.Device().String()
	err = n.release(ctx)
	for _, stage := range Names[1:] {
		_, e := finish.Call(ctx, a, agent.To(stage), agent.None{})
		err = errors.Join(err, e)
	}
	return r, err
}

// newNetwork has the stages make their layers, and connects all workers.
func newNetwork(ctx context.Context, a *agent.Agent, c Config) (*network, error) {
	n := &network{agent: a}
	for i, stage := range Names[1:] {
		n.layers[i] = rref.Remote(ctx, a, agent.To(stage), makeLayer, layerArgs{Hidden: c.Hidden, Seed: c.Seed})
	}
	var all []*rref.Ref[*autograd.Variable]
	for i, l := range n.layers {
		var err error
		if n.params[i], err = paramsMethod.Call(ctx, l, agent.None{}); err != nil {
			return nil, err
		}
		all = append(all, n.params[i]...)
	}
	if _, err := connect.Call(ctx, a, Stage0, Stage1); err != nil {
		return nil, err
	}
	n.sgd = dist.NewSGD(all, c.LR)
	return n, nil
}

// train trains the network, and adds to r.
func (n *network) train(ctx context.Context, training, test Digits, r *Result, report func(Progress)) error {
	batches, err := training.batches(r.Config.Batch)
	if err != nil {
		return err
	}
	begun := time.Now()
	at := Progress{Steps: len(batches) * r.Config.Epochs, Accuracy: math.NaN()}
	for epoch := range r.Config.Epochs {
		for i, b := range batches {
			at.Step++
			loss, err := n.step(ctx, b)
			if err == nil && (math.IsNaN(loss) || math.IsInf(loss, 0)) {
				err = ErrDiverged
			}
			if err != nil {
				return &StepError{at.Step, err}
			}
			r.Losses = append(r.Losses, loss)
			at.Epoch, at.Loss, at.Tested = epoch+1, loss, i == len(batches)-1
			if at.Tested {
				if at.Accuracy, err = n.test(ctx, test); err != nil {
					return err
				}
				r.TestAccuracy = append(r.TestAccuracy, at.Accuracy)
			}
			at.Took = time.Since(begun)
			report(at)
		}
	}
	r.Steps = at.Step
	r.StepsPerSecond = float64(r.Steps) / at.Took.Seconds()
	return nil
}

// step makes one step with the images of d, and returns the loss before it.
func (n *network) step(ctx context.Context, d Digits) (float64, error) {
	ctx, c, err := dist.WithContext(ctx, n.agent)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	hidden, err := forwardMethod.Call(ctx, n.layers[0], d.X)
	if err != nil {
		return 0, err
	}
	loss, err := lossMethod.Call(ctx, n.layers[1], sample{Input: hidden, Digits: d.Y})
	if err != nil {
		return 0, err
	}
	if err := c.Backward(ctx, loss); err != nil {
		return 0, err
	}
	if err := n.sgd.Step(ctx); err != nil {
		return 0, err
	}
	onHost, err := toHost(ctx, loss.Tensor())
	if err != nil {
		return 0, err
	}
	value, err := tensor.At[float32](onHost)
	return float64(value), err
}

// test returns which part of the images in d the network recognizes.
func (n *network) test(ctx context.Context, d Digits) (float64, error) {
	hidden, err := inferMethod.Call(ctx, n.layers[0], d.X)
	if err != nil {
		return 0, err
	}
	correct, err := correctMethod.Call(ctx, n.layers[1], sample{Input: hidden, Digits: d.Y})
	return float64(correct) / float64(d.Y.Len()), err
}

// release releases all references of the trainer.
func (n *network) release(ctx context.Context) error {
	err := n.sgd.Release(ctx)
	for i, l := range n.layers {
		for _, f := range n.params[i] {
			err = errors.Join(err, f.Release(ctx))
		}
		err = errors.Join(err, l.Release(ctx))
	}
	return err
}

// describeAll returns what all workers have done, by rank.
func (p *Part) describeAll(ctx context.Context, a *agent.Agent) ([]WorkerResult, error) {
	own, err := p.describe(ctx, agent.None{})
	all := []WorkerResult{own}
	for _, stage := range Names[1:] {
		w, e := describe.Call(ctx, a, agent.To(stage), agent.None{})
		all, err = append(all, w), errors.Join(err, e)
	}
	return all, err
}
