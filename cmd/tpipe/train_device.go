package main

import (
	"flag"
	"fmt"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/cmd/tpipe/internal/train"
	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
)

// trainPlace is where a process of a training computes, and how it exchanges messages.
type trainPlace struct {
	transport string
	gpus      *cudaipc.Kind // nil for the host
	train.Device
}

// placeFlags declares the flags of a trainPlace.
func placeFlags(fs *flag.FlagSet, transport, device *string) {
	fs.StringVar(transport, "transport", trainTransports[0],
		"`name` of the transport between the processes: auto, the best one, or shm or tcp")
	fs.StringVar(device, "device", "cpu",
		"`device` on which all processes have their tensors and compute: cpu, or a GPU such as cuda:0")
}

// trainTransports are the values of -transport.
var trainTransports = []string{"auto", "shm", "tcp"}

// checkDevice returns a *usageError unless name is a value of -device.
func checkDevice(name string) error {
	d, err := device.Parse(name)
	if err != nil || d != device.CPU() && d.Kind != cudaipc.Name {
		return usageErrorf("-device %q: want cpu, or a GPU such as cuda:0", name)
	}
	return nil
}

// openPlace opens the device with that name. The caller must close the result. The error is a *usageError, or
// why the device cannot be used.
func openPlace(transport, name string) (*trainPlace, error) {
	p := &trainPlace{transport: transport}
	if err := checkDevice(name); err != nil {
		return nil, err
	}
	on, _ := device.Parse(name)
	if on == device.CPU() {
		return p, nil
	}
	kind, _, err := openGPUs()
	if err != nil {
		return nil, fmt.Errorf("-device %s: %w", name, err)
	}
	p.gpus, p.Device = kind, train.Device{On: on, Kind: kind, Kernels: kind.Kernels()}
	if err := p.use(); err != nil {
		_ = kind.Close() // its device is not in use
		return nil, fmt.Errorf("-device %s: %w", name, err)
	}
	return p, nil
}

// use initialises the GPU of p, or returns why that is not possible.
func (p *trainPlace) use() error {
	if all := p.gpus.Devices(); !slices.Contains(all, p.On) && p.gpus.Unusable()[p.On] == nil && len(all) > 0 {
		return fmt.Errorf("there is no such device, but %s", deviceNames(all))
	}
	if _, err := p.gpus.NewStream(p.On); err != nil {
		return err
	}
	_ = p.gpus.CheckIPC(p.On) // without handles the device uses the next channel
	return nil
}

// deviceNames returns the names of all, separated by commas.
func deviceNames(all []device.Device) string {
	names := make([]string, len(all))
	for i, d := range all {
		names[i] = d.String()
	}
	return strings.Join(names, ", ")
}

// close closes the device, which no agent may use any more.
func (p *trainPlace) close() error {
	if p.gpus == nil {
		return nil
	}
	return p.gpus.Close()
}

// configure has a worker with the configuration c use only the transport of p, and channels for its GPUs.
func (p *trainPlace) configure(c *agent.Config) {
	if p.transport == trainTransports[0] && p.gpus == nil {
		return
	}
	profile, policy := tensorpipe.DefaultProfile(), pipe.Policy{}
	if c.TLS != nil {
		profile, c.TLS, c.Secure = profile.WithTLS(c.TLS), nil, true
	}
	switch p.transport {
	case "tcp":
		policy.Transports.Require, policy.Channels.Forbid = []string{uvName}, []string{cma.Name}
	case "shm":
		policy.Transports.Require = []string{shm.Name}
	}
	if p.gpus != nil {
		profile.Channels = append(profile.Channels,
			pipe.ChannelEntry{Name: cudaipc.BasicName, Priority: 0, Factory: cudaipc.NewBasic(p.gpus, basic.New())},
			pipe.ChannelEntry{Name: cudaipc.IPCName, Priority: 300, Factory: cudaipc.NewIPC(p.gpus)})
	}
	c.NewContext = func(o pipe.Options) (*pipe.Context, error) {
		o.Policy = policy
		return profile.NewContext(o)
	}
}
