package tensorpipe_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/simnet"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testcert"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// countingTransport is a TCP transport that counts successful dials.
type countingTransport struct {
	*uv.Transport
	plain, secure atomic.Int64
}

func (c *countingTransport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	conn, err := c.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	if transport.IdentityOf(conn).TLS != nil {
		c.secure.Add(1)
	} else {
		c.plain.Add(1)
	}
	return conn, nil
}

// TestLanes checks that tensors use the lanes of mpt_uv, and each lane uses TLS if the pipe does.
// In the compatible dialect there are 16 lanes from the beginning; in the native dialect at least 4
// are opened by large tensors.
func TestLanes(t *testing.T) {
	config := testcert.New(t)
	for _, c := range []struct {
		name    string
		dialect pipe.Dialect
		secure  bool
		atLeast int64 // connections
	}{
		{"compatible", pipe.DialectCompatible, false, 3 + 16},
		{"compatible over TLS", pipe.DialectCompatible, true, 3 + 16},
		{"native", pipe.DialectNative, false, 2 + 4},
		{"native over TLS", pipe.DialectNative, true, 2 + 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			testwait.Watch(t, 0)
			tcp := &countingTransport{Transport: uv.New()}
			used := &tcp.plain
			if c.secure {
				tcp.Transport, used = uv.New(uv.WithTLS(config, config)), &tcp.secure
			}
			from, to := torchPipe(t, tcp, c.dialect)
			name, _ := from.Plan().Channel(device.CPU(), device.CPU())
			require.Equal(t, "mpt_uv", name)
			for used.Load() < c.atLeast {
				sendTensor(t, from, to)
			}
			for range 3 {
				sendTensor(t, from, to)
				sendTensor(t, to, from)
			}
			require.Equal(t, tcp.plain.Load()+tcp.secure.Load(), used.Load())
		})
	}
}

// TestPlanOfLanes checks that in the native dialect the plan has the size from which tensors use
// lanes, and tensors of each size use the channel in the plan. In the compatible dialect all
// tensors use lanes.
func TestPlanOfLanes(t *testing.T) {
	for dialect, want := range map[pipe.Dialect]struct {
		plan    string
		carried map[string]uint64
	}{
		pipe.DialectNative: {`dialect          native
transport        uv
inline           parts of up to 64 KiB, up to 1 MiB of a message
cpu:0 to cpu:0   mpt_uv
cpu:0 to cpu:0   basic below 1 MiB
not channel cma  forbidden by the policy
`, map[string]uint64{"mpt_uv": 2, "basic": 2}},
		pipe.DialectCompatible: {`dialect            compatible
transport          uv
cpu:0 to cpu:0     mpt_uv
not channel basic  the server: cpu:0 to cpu:0: mpt_uv goes before it
not channel cma    forbidden by the policy
`, map[string]uint64{"mpt_uv": 5}},
	} {
		t.Run(string(dialect), func(t *testing.T) {
			testwait.Watch(t, 0)
			one, other := torchPipe(t, uv.New(), dialect)
			for _, size := range []int{8, 100 << 10, 1<<20 - 8, 1 << 20, 4 << 20} {
				sendBytes(t, one, other, size)
			}
			require.Equal(t, want.plan, one.Plan().String())
			require.Equal(t, one.Plan().Channels, other.Plan().Channels)
			for _, end := range []*pipe.Pipe{one, other} {
				carried := map[string]uint64{}
				for _, c := range end.Stats().Channels {
					carried[c.Name] = c.Sent.Messages + c.Received.Messages
				}
				require.Equal(t, want.carried, carried)
			}
		})
	}
}

// torchPipe opens a pipe within this process over tcp with the channels that PyTorch uses between
// machines: mpt_uv and basic, not cma. It returns the client's end and the server's.
func torchPipe(t *testing.T, tcp transport.Transport, dialect pipe.Dialect) (one, other *pipe.Pipe) {
	t.Helper()
	c, err := tensorpipe.TorchProfile().NewContext(pipe.Options{
		Transports: []pipe.TransportEntry{{Name: "uv", Transport: tcp}},
		Policy:     withoutCMA(),
		Dialect:    dialect,
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	l, err := c.Listen(t.Context(), "uv://localhost:0")
	require.NoError(t, err)
	url := l.URLs()[0]
	one, err = c.Dial(t.Context(), "uv://localhost"+url[strings.LastIndex(url, ":"):])
	require.NoError(t, err)
	other, err = l.Accept(t.Context())
	require.NoError(t, err)
	return one, other
}

// withoutCMA returns a policy that forbids the channel cma, as if the processes could not read each
// other's memory.
func withoutCMA() pipe.Policy { return pipe.Policy{Channels: pipe.Rule{Forbid: []string{"cma"}}} }

func sendTensor(t *testing.T, from, to *pipe.Pipe) {
	t.Helper()
	sendBytes(t, from, to, 4<<20)
}

func sendBytes(t *testing.T, from, to *pipe.Pipe, size int) {
	t.Helper()
	data := bytes.Repeat([]byte("tensor!!"), size/8)
	op := from.WriteAsync(t.Context(), &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(data)}}})
	in, err := to.Next(t.Context())
	require.NoError(t, err)
	memory := pipe.NewAllocation(in.Descriptor())
	require.NoError(t, in.Read(t.Context(), memory))
	require.NoError(t, op.Wait(t.Context()))
	got, ok := memory.Tensors[0].Contiguous()
	require.True(t, ok)
	require.True(t, bytes.Equal(data, got), "wrong bytes")
}

// TestLanesWithinAMachine checks that the plan of a pipe over shared memory has the channel basic
// in place of mpt_uv, unless there is no other channel or a policy prefers mpt_uv.
func TestLanesWithinAMachine(t *testing.T) {
	if err := shm.New().Viable(); err != nil {
		t.Skip(err)
	}
	lanes := tensorpipe.TorchProfile().Channels[1:2]
	wanted := pipe.Policy{Channels: pipe.Rule{Prefer: []string{"mpt_uv"}}}
	for name, c := range map[string]struct {
		options pipe.Options
		want    string
	}{
		"usual":        {pipe.Options{Policy: withoutCMA()}, "basic"},
		"nothing else": {pipe.Options{Channels: lanes}, "mpt_uv"},
		"preferred":    {pipe.Options{Policy: wanted}, "mpt_uv"},
	} {
		for _, dialect := range []pipe.Dialect{pipe.DialectCompatible, pipe.DialectNative} {
			t.Run(name+" "+string(dialect), func(t *testing.T) {
				testwait.Watch(t, 0)
				c.options.Dialect = dialect
				ctx, err := tensorpipe.TorchProfile().NewContext(c.options)
				require.NoError(t, err)
				defer ctx.Close()
				l, err := ctx.Listen(t.Context(), "shm://")
				require.NoError(t, err)
				one, err := ctx.Dial(t.Context(), l.URLs()[0])
				require.NoError(t, err)
				other, err := l.Accept(t.Context())
				require.NoError(t, err)
				got, _ := one.Plan().Channel(device.CPU(), device.CPU())
				require.Equal(t, c.want, got)
				for range 3 {
					sendTensor(t, one, other)
					sendTensor(t, other, one)
				}
			})
		}
	}
}

// TestNoLanesOverSharedMemory checks that a native pipe over shared memory whose channel is mpt_uv
// opens no lanes, because they are slower than the session. In the compatible dialect it opens and
// uses them.
func TestNoLanesOverSharedMemory(t *testing.T) {
	if err := shm.New().Viable(); err != nil {
		t.Skip(err)
	}
	for dialect, lanes := range map[pipe.Dialect]int{pipe.DialectCompatible: 2, pipe.DialectNative: 0} {
		t.Run(string(dialect), func(t *testing.T) {
			testwait.Watch(t, 0)
			net := simnet.New(uv.New())
			striped := mpt.New(mpt.Lanes{Count: 2, Transport: net, Addr: "127.0.0.1:0"})
			ctx, err := pipe.New(pipe.Options{
				Dialect:    dialect,
				Transports: []pipe.TransportEntry{{Name: shm.Name, Transport: shm.New()}},
				Channels:   []pipe.ChannelEntry{{Name: mpt.UVName, Factory: striped}},
			})
			require.NoError(t, err)
			defer ctx.Close()
			l, err := ctx.Listen(t.Context(), "shm://")
			require.NoError(t, err)
			one, err := ctx.Dial(t.Context(), l.URLs()[0])
			require.NoError(t, err)
			other, err := l.Accept(t.Context())
			require.NoError(t, err)
			for range 10 {
				sendTensor(t, one, other)
				sendTensor(t, other, one)
			}
			require.Len(t, net.Links(), lanes)
		})
	}
}

// TestLaneConnectionLost checks that if the connection of one lane is lost, Write at one end and
// Next or Read at the other fail with ErrPeerLost, or, in the compatible dialect only, with
// ErrPeerClosed.
func TestLaneConnectionLost(t *testing.T) {
	for dialect, atLeast := range map[pipe.Dialect]int{pipe.DialectCompatible: 3 + 16, pipe.DialectNative: 2 + 4} {
		t.Run(string(dialect), func(t *testing.T) {
			testwait.Watch(t, 0)
			net := simnet.New(uv.New())
			one, other := torchPipe(t, net, dialect)
			for len(net.Links()) < atLeast {
				sendTensor(t, one, other)
			}
			sendTensor(t, one, other)
			lost := testwait.Start(func() error {
				for {
					in, err := other.Next(t.Context())
					if err == nil {
						err = in.Read(t.Context(), pipe.NewAllocation(in.Descriptor()))
					}
					if err != nil {
						return err
					}
				}
			})
			net.Links()[len(net.Links())-1].Cut()
			data := make([]byte, 4<<20)
			var err error
			for err == nil {
				err = one.Write(t.Context(), &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(data)}}})
			}
			for _, err := range []error{err, testwait.Finish(t, lost)} {
				// An end that first receives the other end's close frame reports that it closed; in
				// the compatible dialect the connections may end before the close frame arrives.
				closed := dialect == pipe.DialectCompatible && errors.Is(err, pipe.ErrPeerClosed)
				require.True(t, closed || strings.Contains(err.Error(), pipe.ErrPeerLost.Error()), "%v", err)
			}
		})
	}
}
