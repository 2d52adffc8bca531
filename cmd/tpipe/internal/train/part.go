package train

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/safetensors"
)

// The names of the workers.
const (
	Trainer = "trainer"
	Stage0  = "stage0"
	Stage1  = "stage1"
)

// Names are the names of the workers by rank.
var Names = []string{Trainer, Stage0, Stage1}

// The functions of the stages, and the methods of their layers.
var (
	makeLayer = agent.NewFunc[layerArgs, *layer]("train.makeLayer")
	save      = agent.NewFunc[[]*rref.Ref[*autograd.Variable], agent.None]("train.save")
	describe  = agent.NewFunc[agent.None, WorkerResult]("train.describe")
	connect   = agent.NewFunc[string, agent.None]("train.connect")
	finish    = agent.NewFunc[agent.None, agent.None]("train.finish")

	paramsMethod  = rref.NewMethod[*layer, agent.None, []*rref.Ref[*autograd.Variable]]("train.Params")
	forwardMethod = rref.NewMethod[*layer, *tensor.Tensor, *autograd.Variable]("train.Forward")
	lossMethod    = rref.NewMethod[*layer, sample, *autograd.Variable]("train.Loss")
	inferMethod   = rref.NewMethod[*layer, *tensor.Tensor, *autograd.Variable]("train.Infer")
	correctMethod = rref.NewMethod[*layer, sample, int]("train.Correct")
)

// layerArgs describes the network of which a stage makes its layer.
type layerArgs struct {
	_      struct{} `tensorpipe:"train.layerArgs"`
	Hidden int
	Seed   uint64
}

// Files are the files of a stage. They may be empty.
type Files struct {
	Init string // has its initial parameters; otherwise they are random
	Save string // where stage0 writes those of both stages in the end
}

// Part is one of the three workers.
type Part struct {
	name     string
	files    Files
	device   Device
	autograd *dist.Autograd
	calls    atomic.Int64 // that it has served
	layer    atomic.Pointer[layer]

	mu       sync.Mutex
	channels map[string]string // between the devices of this worker and of others, by their names

	end   sync.Once
	ended chan struct{} // closed when err is set
	err   error         // why the training has ended, or nil if it is finished
}

// ErrTrainer is the error of a stage whose trainer has gone before the training was finished.
var ErrTrainer = errors.New("the trainer has gone")

// NewPart returns the worker with that name, one of Names, whose tensors are on d, and adds its name, rank,
// functions, devices and extensions to c, its configuration. The caller joins the group with c. The error is a
// *agent.DeviceMapError.
func NewPart(name string, f Files, d Device, c *agent.Config) (*Part, error) {
	p := &Part{
		name: name, files: f, device: d, autograd: dist.New(dist.Options{Engine: d.engine()}),
		channels: map[string]string{}, ended: make(chan struct{}),
	}
	methods := rref.Methods{
		paramsMethod.Serve((*layer).params), forwardMethod.Serve((*layer).forward), lossMethod.Serve((*layer).loss),
		inferMethod.Serve((*layer).infer), correctMethod.Serve((*layer).correct),
	}
	c.Name, c.Rank, c.WorldSize = name, slices.Index(Names, name), len(Names)
	c.Funcs = append(c.Funcs,
		makeLayer.Serve(p.makeLayer), save.Serve(p.save), describe.Serve(p.describe), connect.Serve(doConnect), finish.Serve(p.finish))
	c.Extensions = append(c.Extensions, rref.New(rref.Options{Methods: methods}), p.autograd)
	c.Interceptors = append(c.Interceptors, agent.Interceptor{
		Received: func(ctx context.Context, m *agent.Message) (context.Context, error) {
			if m.Kind == agent.KindRequest {
				p.calls.Add(1)
			}
			return ctx, nil
		},
	})
	return p, p.useDevice(c)
}

// makeLayer is the function makeLayer. The error is a *FileError, or one of reading the file.
func (p *Part) makeLayer(ctx context.Context, args layerArgs) (*layer, error) {
	if err := checkHidden(args.Hidden); err != nil {
		return nil, err
	}
	s := shapeOf(p.name, args.Hidden)
	var params []*tensor.Tensor
	var err error
	if p.files.Init != "" {
		params, err = readFile(p.files.Init, p.name, s, true)
	} else {
		params, err = s.random(args.Seed, p.name)
	}
	if err != nil {
		return nil, err
	}
	l, err := p.newLayer(ctx, params)
	p.layer.Store(l)
	return l, err
}

// save is the function save: it writes the parameters of this stage, and those of the other one to which
// others refer, to the file for them. It does nothing if there is none.
func (p *Part) save(ctx context.Context, others []*rref.Ref[*autograd.Variable]) (agent.None, error) {
	l := p.layer.Load()
	if p.files.Save == "" || l == nil || len(others) != len(l.refs) {
		return agent.None{}, nil
	}
	params := []*autograd.Variable{l.weight, l.bias}
	for _, f := range others {
		x, err := f.ToHere(ctx)
		if err != nil {
			return agent.None{}, err
		}
		params = append(params, x)
	}
	all := map[string]*tensor.Tensor{}
	for i, name := range []string{Stage0 + ".weight", Stage0 + ".bias", Stage1 + ".weight", Stage1 + ".bias"} {
		x, err := toHost(ctx, params[i].Tensor())
		if err != nil {
			return agent.None{}, err
		}
		all[name] = x
	}
	return agent.None{}, safetensors.WriteFile(p.files.Save, all, nil)
}

// WorkerResult is what one worker has done.
type WorkerResult struct {
	_                struct{} `tensorpipe:"train.worker"`
	Name             string   `json:"name"`
	PID              int      `json:"pid"`
	Calls            int64    `json:"calls"`             // that it has served
	GradientMessages int64    `json:"gradient_messages"` // that it has received
	GradientBytes    int64    `json:"gradient_bytes"`    // of the elements of the gradients in them
	Parameters       int      `json:"parameters"`        // elements that it owns
	Device           string   `json:"device"`            // of its parameters, or of the images that it has

	Channels map[string]string `json:"-"` // between its device and those of others, by their names
}

// describe is the function describe.
func (p *Part) describe(context.Context, agent.None) (WorkerResult, error) {
	t := p.autograd.Traffic()
	w := WorkerResult{
		Name: p.name, PID: os.Getpid(), Calls: p.calls.Load(),
		GradientMessages: t.Messages, GradientBytes: t.Bytes,
	}
	p.mu.Lock()
	w.Channels = maps.Clone(p.channels)
	p.mu.Unlock()
	if l := p.layer.Load(); l != nil {
		w.Device = l.weight.Tensor().Device().String()
		w.Parameters = l.weight.Tensor().Len() + l.bias.Tensor().Len()
	}
	return w, nil
}

// finish is the function finish: it ends Wait.
func (p *Part) finish(context.Context, agent.None) (agent.None, error) {
	p.endWith(nil)
	return agent.None{}, nil
}

func (p *Part) endWith(err error) {
	p.end.Do(func() {
		p.err = err
		close(p.ended)
	})
}

// Wait serves the trainer from the worker of a, a stage, until the training is finished. The error
// matches ErrTrainer if the trainer has gone before, or is the cause of ctx. The caller shuts a down.
func (p *Part) Wait(ctx context.Context, a *agent.Agent) error {
	stop := a.WatchAll(func(e agent.MemberEvent) {
		if e.Worker.Name == Trainer && e.Kind != agent.MemberJoined {
			p.endWith(fmt.Errorf("%w: %v", ErrTrainer, e))
		}
	})
	defer stop()
	select {
	case <-p.ended:
		return p.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// doConnect is the function connect: it calls another worker, so that there is a pipe to it.
func doConnect(ctx context.Context, other string) (agent.None, error) {
	_, err := describe.Call(ctx, agent.FromContext(ctx), agent.To(other), agent.None{})
	return agent.None{}, err
}

// MaxHidden bounds the hidden units.
const MaxHidden = 1 << 16

func checkHidden(n int) error {
	if n < 1 || n > MaxHidden {
		return fmt.Errorf("%w: %d hidden units, want 1 to %d", agent.ErrArguments, n, MaxHidden)
	}
	return nil
}
