package train

import (
	"context"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// Device is where the workers have their tensors: the same device in each process. The zero Device is
// the host. The caller keeps Kind open while the agent is in use, and gives the agent channels for it.
type Device struct {
	On      device.Device
	Kind    device.Kind
	Kernels ops.Kernels // of Kind
}

// engine returns the engine that computes on d, or nil for the host.
func (d Device) engine() *ops.Engine {
	if d.Kind == nil {
		return nil
	}
	return &ops.Engine{ByKind: map[string]ops.Kernels{d.Kind.Name(): d.Kernels}}
}

// useDevice adds the device of p to c, the configuration of its agent: tensors that are on it here are
// on it in all workers.
func (p *Part) useDevice(c *agent.Config) error {
	d := p.device
	if d.Kind == nil {
		return nil
	}
	c.Kinds, c.Devices = []device.Kind{d.Kind}, []device.Device{d.On}
	for _, worker := range Names {
		if worker != p.name {
			if err := c.SetDeviceMap(worker, agent.DeviceMap{d.On: d.On}); err != nil {
				return err
			}
		}
	}
	events := agent.Events{}
	if c.Events != nil {
		events = *c.Events
	}
	before := events.PeerConnected
	events.PeerConnected = func(i agent.PeerConnectedInfo) {
		if before != nil {
			before(i)
		}
		channel, _ := i.Plan.Channel(d.On, d.On)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.channels[i.Worker.Name] = channel
	}
	c.Events = &events
	return nil
}

// onDevice returns ctx with the engine and a new stream of the device of p.
func (p *Part) onDevice(ctx context.Context) (context.Context, error) {
	e := p.device.engine()
	if e == nil {
		return ctx, nil
	}
	s, err := p.device.Kind.NewStream(p.device.On)
	if err != nil {
		return nil, err
	}
	return device.WithStream(autograd.WithEngine(ctx, e), s), nil
}

// place returns x on the device of p.
func (p *Part) place(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
	if p.device.Kind == nil {
		return x, nil
	}
	return autograd.EngineOf(ctx).To(ctx, x, p.device.On)
}

// placeAll returns all on the device of p.
func (p *Part) placeAll(ctx context.Context, all Digits) (Digits, error) {
	x, err := p.place(ctx, all.X)
	if err != nil {
		return Digits{}, err
	}
	y, err := p.place(ctx, all.Y)
	return Digits{x, y}, err
}

// toHost returns x on the host, after the work that computes it.
func toHost(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
	return autograd.EngineOf(ctx).To(ctx, x, device.CPU())
}

// withChannels replaces the channel for host memory in each of paths by that between the devices of
// its workers, if they have one.
func withChannels(paths []Path, workers []WorkerResult) {
	for i, p := range paths {
		for _, w := range workers {
			if channel := w.Channels[p.To]; w.Name == p.From && channel != "" {
				transport, _, _ := strings.Cut(p.Path, "+")
				paths[i].Path = transport + "+" + channel
			}
		}
	}
}
