package rref_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest/npu"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

type producer struct{}

var (
	produced    = agent.NewFunc[bool, *tensor.Tensor]("test.produced")
	newProducer = agent.NewFunc[agent.None, producer]("test.newProducer")
	produce     = rref.NewMethod[producer, bool, *tensor.Tensor]("produce")
	duplicate   = rref.NewMethod[*tensor.Tensor, agent.None, *tensor.Tensor]("duplicate")
)

// npuZero is the device of the tensors in these tests.
var npuZero = device.Device{Kind: npu.Name}

// producing are two workers with a device kind each, of which the second serves produced, produce and duplicate.
type producing struct {
	*group
	kinds   []*delayed.Kind
	release func() // begins the work of the last call of serve
}

func startProducing(t *testing.T) *producing {
	p := &producing{kinds: []*delayed.Kind{npu.NewKind(), npu.NewKind()}}
	network := mem.NewNetwork()
	p.group = start(t, 2, func(rank int, c *agent.Config, o *rref.Options) {
		c.Funcs = append(c.Funcs, produced.Serve(p.serve), newProducer.Serve(func(context.Context, agent.None) (producer, error) {
			return producer{}, nil
		}))
		o.Methods = append(o.Methods, duplicate.Serve(p.duplicate),
			produce.Serve(func(_ producer, ctx context.Context, own bool) (*tensor.Tensor, error) { return p.serve(ctx, own) }))
		c.Kinds, c.Listen = []device.Kind{p.kinds[rank]}, []string{"mem://"}
		if rank == 0 {
			c.DeviceMaps = map[string]agent.DeviceMap{"worker1": {npuZero: npuZero}}
		}
		c.NewContext = func(o pipe.Options) (*pipe.Context, error) {
			o.Transports = []pipe.TransportEntry{{Name: "mem", Transport: mem.New(network)}}
			o.Channels = []pipe.ChannelEntry{{Name: "xth", Factory: xth.New()}, {Name: npu.Name, Priority: 1, Factory: npu.New(p.kinds[rank], xth.New())}}
			return pipe.New(o)
		}
	})
	for _, k := range p.kinds {
		t.Cleanup(k.Close)
	}
	return p
}

// serve returns a tensor that is computed late on the current stream of ctx, and valid on a stream of its own or at once.
func (p *producing) serve(ctx context.Context, own bool) (*tensor.Tensor, error) {
	var valid device.Stream
	if own {
		valid, _ = p.kinds[1].NewStream(npuZero)
	}
	buf, err := p.kinds[1].Alloc(npuZero, 4, valid)
	if err != nil {
		return nil, err
	}
	current := device.StreamFrom(ctx, npuZero)
	p.release = current.(*delayed.Stream).Hold()
	if err := p.kinds[1].Write(buf.WithStream(current), []byte("late")); err != nil {
		return nil, err
	}
	return tensor.FromBuffer(buf.WithStream(valid), tensor.U8, 4)
}

// duplicate returns a copy of x that is made on the current stream of ctx, which it does not order.
func (p *producing) duplicate(x *tensor.Tensor, ctx context.Context, _ agent.None) (*tensor.Tensor, error) {
	current := device.StreamFrom(ctx, npuZero)
	src, err := x.Buffer()
	if err != nil {
		return nil, err
	}
	dst, err := p.kinds[1].Alloc(npuZero, 4, nil)
	if err != nil {
		return nil, err
	}
	if err := p.kinds[1].Copy(dst.WithStream(current), src.WithStream(current)); err != nil {
		return nil, err
	}
	return tensor.FromBuffer(dst, tensor.U8, 4)
}

// A value that a function or a method has made for a reference is fetched after the work on the streams of its context,
// also if its tensors are valid on other streams, and also on the owner. Methods of the value run after that work too.
func TestFetchWaitsForWork(t *testing.T) {
	for name, c := range map[string]struct{ own, method, copied, onOwner bool }{
		"valid at once":                   {},
		"valid on another stream":         {own: true},
		"method":                          {method: true},
		"method, valid on another stream": {own: true, method: true},
		"copied by a method":              {own: true, copied: true},
		"on the owner":                    {onOwner: true},
		"method, on the owner":            {method: true, onOwner: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := startProducing(t)
				a, k := p.agents[0], p.kinds[0]
				if c.onOwner {
					a, k = p.agents[1], p.kinds[1]
				}
				var f *rref.Ref[*tensor.Tensor]
				if !c.method {
					f = rref.Remote(t.Context(), a, "worker1", produced, c.own)
				} else {
					f = produce.Remote(t.Context(), rref.Remote(t.Context(), a, "worker1", newProducer, agent.None{}), c.own)
				}
				if c.copied {
					f = duplicate.Remote(t.Context(), f, agent.None{})
				}
				mine, err := k.NewStream(npuZero)
				require.NoError(t, err)
				got, read := make([]byte, 4), make(chan error, 1)
				go func() { // a fetch waits for the sender's device here
					x, err := f.ToHere(device.WithStream(t.Context(), mine))
					if err != nil {
						read <- err
						return
					}
					buf, err := x.Buffer()
					read <- errors.Join(err, k.Read(got, buf.WithStream(mine)))
				}()
				synctest.Wait() // a stream that does not wait has read
				p.release()
				require.NoError(t, <-read)
				require.NoError(t, mine.Synchronize(t.Context()))
				require.Equal(t, "late", string(got))
				require.Equal(t, make([]error, 2), p.shutdown())
			})
		})
	}
}
