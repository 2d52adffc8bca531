package pipe_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// BenchmarkRoundTrip measures, on each path and for several sizes, the time from writing a message
// until its echo was read. Both ends reuse their message and their memory.
func BenchmarkRoundTrip(b *testing.B) {
	for _, path := range paths() {
		for _, size := range []int{0, 8, 64 << 10, 16 << 20} {
			b.Run(fmt.Sprintf("%s/%dB", path.name, size), func(b *testing.B) {
				client, server := connect(b, path)
				go echoForBenchmark(server, size)
				m, a := benchmarkMessage(size)
				b.SetBytes(2 * int64(size))
				b.ReportAllocs()
				for b.Loop() {
					require.NoError(b, client.Write(context.Background(), m))
					in, err := client.Next(context.Background())
					require.NoError(b, err)
					require.NoError(b, in.Read(context.Background(), a))
				}
			})
		}
	}
}

// BenchmarkOneWay measures, on each path and for several sizes, how fast one end sends while the
// other reads. At most 8 messages are in flight.
func BenchmarkOneWay(b *testing.B) {
	for _, path := range paths() {
		for _, size := range []int{8, 64 << 10, 16 << 20} {
			b.Run(fmt.Sprintf("%s/%dB", path.name, size), func(b *testing.B) {
				client, server := connect(b, path)
				go func() {
					_, a := benchmarkMessage(size)
					for {
						in, err := server.Next(context.Background())
						if err != nil || in.Read(context.Background(), a) != nil {
							return
						}
					}
				}()
				m, _ := benchmarkMessage(size)
				var ops [8]*pipe.WriteOp
				b.SetBytes(int64(size))
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					if ops[i] != nil {
						require.NoError(b, ops[i].Wait(context.Background()))
					}
					ops[i] = client.WriteAsync(context.Background(), m)
					i = (i + 1) % len(ops)
				}
			})
		}
	}
}

func benchmarkMessage(size int) (*pipe.Message, pipe.Allocation) {
	m, a := &pipe.Message{}, pipe.Allocation{}
	if size > 0 {
		m.Tensors = []pipe.Tensor{{Buffer: device.Bytes(make([]byte, size)), TargetDevice: device.CPU()}}
		a.Tensors = []device.Buffer{device.Bytes(make([]byte, size))}
	}
	return m, a
}

func echoForBenchmark(p *pipe.Pipe, size int) {
	m, a := benchmarkMessage(size)
	for {
		in, err := p.Next(context.Background())
		if err != nil || in.Read(context.Background(), a) != nil || p.Write(context.Background(), m) != nil {
			return
		}
	}
}
