package rref_test

import (
	"bytes"
	"context"
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

var produced = agent.NewFunc[bool, *tensor.Tensor]("test.produced")

// A value that a function has made for a reference is fetched after the work on the streams of its context, also if its
// tensors are valid on other streams.
func TestFetchWaitsForWork(t *testing.T) {
	for name, own := range map[string]bool{"valid at once": false, "valid on another stream": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network, on := mem.NewNetwork(), device.Device{Kind: npu.Name}
				kinds := []*delayed.Kind{npu.NewKind(), npu.NewKind()}
				var release func()
				serve := func(ctx context.Context, own bool) (*tensor.Tensor, error) {
					var valid device.Stream
					if own {
						valid, _ = kinds[1].NewStream(on)
					}
					buf, err := kinds[1].Alloc(on, 4, valid)
					if err != nil {
						return nil, err
					}
					current := device.StreamFrom(ctx, on)
					release = current.(*delayed.Stream).Hold()
					if err := kinds[1].Write(buf.WithStream(current), []byte("late")); err != nil {
						return nil, err
					}
					return tensor.FromBuffer(buf.WithStream(valid), tensor.U8, 4)
				}
				g := start(t, 2, func(rank int, c *agent.Config, _ *rref.Options) {
					c.Funcs = append(c.Funcs, produced.Serve(serve))
					c.Kinds, c.Listen = []device.Kind{kinds[rank]}, []string{"mem://"}
					if rank == 0 {
						c.DeviceMaps = map[string]agent.DeviceMap{"worker1": {on: on}}
					}
					c.NewContext = func(o pipe.Options) (*pipe.Context, error) {
						o.Transports = []pipe.TransportEntry{{Name: "mem", Transport: mem.New(network)}}
						o.Channels = []pipe.ChannelEntry{{Name: "xth", Factory: xth.New()}, {Name: npu.Name, Priority: 1, Factory: npu.New(kinds[rank], xth.New())}}
						return pipe.New(o)
					}
				})
				for _, k := range kinds {
					t.Cleanup(k.Close)
				}
				a := g.agents[0]
				f := rref.Remote(t.Context(), a, "worker1", produced, own)
				mine, err := kinds[0].NewStream(on)
				require.NoError(t, err)
				ctx := device.WithStream(t.Context(), mine)
				fetched := make(chan *tensor.Tensor, 1)
				go func() {
					x, err := f.ToHere(ctx)
					require.NoError(t, err)
					fetched <- x
				}()
				synctest.Wait()
				release()
				x := <-fetched
				buf, err := x.Buffer()
				require.NoError(t, err)
				got := make([]byte, 4)
				require.NoError(t, kinds[0].Read(got, buf.WithStream(mine)))
				require.NoError(t, mine.Synchronize(t.Context()))
				require.True(t, bytes.Equal([]byte("late"), got), "%q", got)
				require.NoError(t, f.Release(t.Context()))
			})
		})
	}
}
