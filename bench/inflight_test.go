package bench

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestManyInFlightAreBlockedNotBuffered tests that a writer with 10,000 messages (156 MiB) and a
// budget of 64 MiB blocks while the reader does not read, that this process, which has both ends,
// does not buffer the waiting messages, and that all messages arrive once the reader reads. Under
// the race detector all numbers are a quarter.
func TestManyInFlightAreBlockedNotBuffered(t *testing.T) {
	const size = 16 << 10
	messages, budget := race.Pick(10_000, 2500), race.Pick(64<<20, 16<<20)
	for _, spec := range pathSpecs() {
		for _, named := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/named=%t", spec.Dialect, named), func(t *testing.T) {
				opts, err := spec.options("in flight", nil)
				require.NoError(t, err)
				opts.Limits = pipe.Limits{PipeBytesInFlight: budget, ContextBytesInFlight: 2 * budget}
				client, server := pipePair(t, opts)
				before := inUse()

				data := make([]byte, size) // shared by all messages, so that it does not count
				generator(patternWord).fill(data, 0)
				var taken atomic.Int64
				ops := make([]*pipe.WriteOp, messages)
				var writing sync.WaitGroup
				writing.Go(func() {
					for i := range ops {
						ops[i] = client.WriteAsync(context.Background(), numbered(i, data, named))
						taken.Add(1)
					}
				})
				require.Eventually(t, func() bool { return client.Stats().BytesInFlight > budget-2*size }, testwait.Limit, time.Millisecond, "the budget is never full")
				require.Less(t, taken.Load(), int64(messages), "the writer did not block")
				require.LessOrEqual(t, client.Stats().BytesInFlight, budget)
				require.Less(t, inUse()-before, budget+budget/2, "waiting messages are buffered")

				allocation := device.Bytes(make([]byte, size))
				for i := range messages {
					in, err := server.Next(t.Context())
					require.NoError(t, err)
					require.Equal(t, strconv.Itoa(i), string(in.Descriptor().Metadata))
					require.NoError(t, in.Read(t.Context(), pipe.Allocation{Tensors: []device.Buffer{allocation}}))
				}
				writing.Wait()
				for i := range messages {
					require.NoError(t, ops[i].Wait(t.Context()))
				}
			})
		}
	}
}

// numbered returns a message with the number i as its metadata and data, not copied, as its tensor.
// If named is true the tensor names the host as its target device.
func numbered(i int, data []byte, named bool) *pipe.Message {
	tensor := pipe.Tensor{Buffer: device.Bytes(data)}
	if named {
		tensor.TargetDevice = device.CPU()
	}
	return &pipe.Message{Metadata: []byte(strconv.Itoa(i)), Tensors: []pipe.Tensor{tensor}}
}

// inUse collects garbage and returns the bytes of the heap and the stacks of this process that are
// in use.
func inUse() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapInuse + m.StackInuse)
}
