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
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/internal/race"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// A writer with 10,000 messages for a reader that does not read, 156 MiB under a
// budget of 64 MiB, is made to wait. Both ends are in this process: its memory
// holds whatever either of them has buffered. Then all messages arrive. Under the
// race detector all of that is a quarter.
func TestManyInFlightAreBlockedNotBuffered(t *testing.T) {
	const size = 16 << 10
	messages, budget := race.Pick(10_000, 2500), race.Pick(64<<20, 16<<20)
	for _, spec := range pathSpecs() {
		for _, named := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/named=%t", spec.Dialect, named), func(t *testing.T) {
				opts, err := spec.options("in flight", nil)
				require.NoError(t, err)
				opts.Limits = pipe.Limits{PipeBytesInFlight: budget, ContextBytesInFlight: 2 * budget}
				client, server := joined(t, opts)
				before := inUse()

				data := make([]byte, size) // one for all, so that it does not count
				words(word).fill(data, 0)
				var taken atomic.Int64
				ops := make([]*pipe.WriteOp, messages)
				var writing sync.WaitGroup
				writing.Go(func() {
					for i := range ops {
						ops[i] = client.WriteAsync(context.Background(), numbered(i, data, named))
						taken.Add(1)
					}
				})
				require.Eventually(t, func() bool { return client.Stats().BytesInFlight > budget-2*size }, patience.Limit, time.Millisecond, "the budget is never full")
				require.Less(t, taken.Load(), int64(messages), "the writer was not made to wait")
				require.LessOrEqual(t, client.Stats().BytesInFlight, budget)
				require.Less(t, inUse()-before, budget+budget/2, "what waits is buffered")

				room := device.Bytes(make([]byte, size))
				for i := range messages {
					in, err := server.Next(t.Context())
					require.NoError(t, err)
					require.Equal(t, strconv.Itoa(i), string(in.Descriptor().Metadata))
					require.NoError(t, in.Read(t.Context(), pipe.Allocation{Tensors: []device.Buffer{room}}))
				}
				writing.Wait()
				for i := range messages {
					require.NoError(t, ops[i].Wait(t.Context()))
				}
			})
		}
	}
}

// numbered is a message of that number.
func numbered(i int, data []byte, named bool) *pipe.Message {
	tensor := pipe.Tensor{Buffer: device.Bytes(data)}
	if named {
		tensor.TargetDevice = device.CPU()
	}
	return &pipe.Message{Metadata: []byte(strconv.Itoa(i)), Tensors: []pipe.Tensor{tensor}}
}

// inUse is the memory of this process that is not garbage.
func inUse() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapInuse + m.StackInuse)
}
