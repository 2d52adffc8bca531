package pipe_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/parity"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestParity holds the cases of TensorPipe's core tests, each over every path.
func TestParity(t *testing.T) {
	cpu, any := device.CPU(), device.Device{}
	cases := map[string]func(t *testing.T, client, server *pipe.Pipe){
		"SimpleWriteRead": func(t *testing.T, client, server *pipe.Pipe) {
			exchange(t, client, server, message(1, []int{20, 0, 300}, []int{256, 1 << 20}))
		},
		"SimpleWriteReadPayloadsOnly": func(t *testing.T, client, server *pipe.Pipe) {
			exchange(t, client, server, message(2, []int{1, 2, 1 << 20}, nil))
		},
		"SimpleWriteReadTensorsOnly": func(t *testing.T, client, server *pipe.Pipe) {
			exchange(t, client, server, message(3, nil, []int{8, 9}))
		},
		"SimpleWriteReadWithAllTargetDevices": func(t *testing.T, client, server *pipe.Pipe) {
			exchange(t, client, server, message(4, []int{5}, []int{8, 0, 9}, cpu, cpu, cpu))
		},
		"SimpleWriteReadWithSomeTargetDevices": func(t *testing.T, client, server *pipe.Pipe) {
			exchange(t, client, server, message(5, []int{5}, []int{8, 16, 0, 32}, cpu, any, any, cpu))
		},
		"MultipleWriteRead": func(t *testing.T, client, server *pipe.Pipe) {
			exchange(t, client, server, message(6, []int{10}, []int{20}), message(7, []int{30, 31}, []int{40, 41}))
		},
		"MultipleWriteReadWithSomeTargetDevices": func(t *testing.T, client, server *pipe.Pipe) {
			exchange(t, client, server,
				message(8, []int{10}, []int{20, 21}, any, cpu), message(9, nil, []int{40}, cpu), message(10, nil, []int{4, 5}, cpu, any))
		},
		"WriteFromBothThenRead": writeFromBothThenRead,
		"ClientPingSerial":      clientPingSerial,
		"ClientPingInline":      clientPingInline,
		"ServerPingPongTwice":   serverPingPongTwice,
		"MixedTensorMessage":    mixedTensorMessage,
	}
	for name, f := range cases {
		for _, dialect := range []string{pipe.DialectCompatible, pipe.DialectNative} {
			parity.Case(t, "tensorpipe/core."+name+"@"+dialect, func(t *testing.T) { onPaths(t, pathsOf(dialect), f) })
		}
	}
	parity.Case(t, "tensorpipe/core.ClosingAbortsOperations", closingAbortsOperations)
}

// exchange queues all messages at one end before the other reads any, in both
// directions one after the other.
func exchange(t *testing.T, client, server *pipe.Pipe, messages ...*pipe.Message) {
	for _, ends := range [][2]*pipe.Pipe{{client, server}, {server, client}} {
		var ops []*pipe.WriteOp
		for _, m := range messages {
			ops = append(ops, ends[0].WriteAsync(testContext(t), m))
		}
		for _, m := range messages {
			expect(t, ends[1], m)
		}
		for _, op := range ops {
			require.NoError(t, op.Wait(testContext(t)))
		}
	}
}

func writeFromBothThenRead(t *testing.T, client, server *pipe.Pipe) {
	fromClient := message(11, []int{100}, []int{200, 300})
	fromServer := message(12, []int{400}, []int{500})
	ops := []*pipe.WriteOp{
		client.WriteAsync(testContext(t), fromClient),
		server.WriteAsync(testContext(t), fromServer),
	}
	expect(t, server, fromClient)
	expect(t, client, fromServer)
	for _, op := range ops {
		require.NoError(t, op.Wait(testContext(t)))
	}
}

func clientPingSerial(t *testing.T, client, server *pipe.Pipe) {
	m := message(13, []int{1, 2, 3, 4}, []int{5, 6, 7, 8})
	op := client.WriteAsync(testContext(t), m)
	in, err := server.Next(testContext(t))
	require.NoError(t, err)
	require.Len(t, in.Descriptor().Payloads, 4)
	require.Len(t, in.Descriptor().Tensors, 4)
	same(t, m, in.Descriptor(), read(t, in))
	require.NoError(t, op.Wait(testContext(t)))
}

// clientPingInline reads in the goroutine that handles descriptors, while the
// writer blocks.
func clientPingInline(t *testing.T, client, server *pipe.Pipe) {
	m := message(14, []int{1, 2, 3, 4}, []int{5, 6, 7, 8})
	handled := make(chan error, 1)
	a := make(chan pipe.Allocation, 1)
	var d *pipe.Descriptor
	go func() {
		in, err := server.Next(testContext(t))
		if err != nil {
			handled <- err
			return
		}
		d = in.Descriptor()
		alloc := pipe.NewAllocation(d)
		err = in.Read(testContext(t), alloc)
		a <- alloc
		handled <- err
	}()
	write(t, client, m)
	require.NoError(t, <-handled)
	same(t, m, d, <-a)
}

func serverPingPongTwice(t *testing.T, client, server *pipe.Pipe) {
	for round := range 2 {
		pings := []*pipe.Message{message(20+round, []int{10}, []int{20}), message(30+round, []int{11, 12}, []int{21})}
		var ops []*pipe.WriteOp
		for _, m := range pings {
			ops = append(ops, server.WriteAsync(testContext(t), m))
		}
		for _, m := range pings {
			d, a := receive(t, client)
			same(t, m, d, a)
			ops = append(ops, client.WriteAsync(testContext(t), d.Message(a)))
		}
		for _, m := range pings {
			expect(t, server, m)
		}
		for _, op := range ops {
			require.NoError(t, op.Wait(testContext(t)))
		}
	}
}

func mixedTensorMessage(t *testing.T, client, server *pipe.Pipe) {
	full, empty := message(40, []int{10, 20}, []int{30, 40}), &pipe.Message{}
	ops := []*pipe.WriteOp{client.WriteAsync(testContext(t), full), client.WriteAsync(testContext(t), empty)}
	first, err := server.Next(testContext(t))
	require.NoError(t, err)
	second, err := server.Next(testContext(t))
	require.NoError(t, err)
	secondRead := make(chan error, 1)
	go func() { secondRead <- second.Read(testContext(t), pipe.Allocation{}) }()
	same(t, full, first.Descriptor(), read(t, first))
	require.NoError(t, <-secondRead)
	require.Empty(t, second.Descriptor().Metadata)
	require.Empty(t, second.Descriptor().Payloads)
	require.Empty(t, second.Descriptor().Tensors)
	for _, op := range ops {
		require.NoError(t, op.Wait(testContext(t)))
	}
}

func closingAbortsOperations(t *testing.T) {
	for _, path := range paths() {
		t.Run(path.name, func(t *testing.T) {
			c := newContext(t, path)
			l, err := c.Listen(testContext(t), path.url)
			require.NoError(t, err)
			pending := make(chan error, 1)
			started := make(chan struct{})
			go func() {
				close(started)
				_, err := l.Accept(testContext(t))
				pending <- err
			}()
			<-started
			require.NoError(t, l.Close())
			require.ErrorIs(t, <-pending, pipe.ErrClosed)
			_, err = l.Accept(testContext(t))
			require.ErrorIs(t, err, pipe.ErrClosed)
		})
	}
}
