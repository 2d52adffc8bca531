package agent_test

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest/npu"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

const mib = 1 << 20

// smallError is an error with a short text that refers to much memory.
type smallError struct{ memory []byte }

func (smallError) Error() string { return "small error" }

// floodArgs selects the kind of the reply to a call, which takes 1 MiB.
type floodArgs struct {
	Way  string
	Text string
}

type floodReply struct {
	Bytes  []byte
	Text   string
	Tensor *tensor.Tensor
}

// serveFlood is a handler whose reply, or whose error, takes 1 MiB of memory in the way that
// args.Way names: as bytes or a tensor, as a small value that lies in 1 MiB, or as a small part of
// a large argument.
func serveFlood(args floodArgs) (reply floodReply, err error) {
	rows, err := tensor.FromSlice(make([]byte, mib), mib)
	if err != nil {
		return reply, err
	}
	switch args.Way {
	case "bytes":
		reply.Bytes = make([]byte, mib)
	case "capacity":
		reply.Bytes = make([]byte, 1, mib)
	case "tensor":
		reply.Tensor = rows
	case "large view":
		reply.Tensor, err = rows.Slice(0, 0, mib/4, 1)
	case "small view":
		reply.Tensor, err = rows.Slice(0, 0, 16, 1)
	case "argument":
		reply.Text = args.Text[:5]
	case "error":
		err = errors.New(strings.Repeat("x", mib))
	case "small error":
		err = smallError{make([]byte, mib)}
	}
	return reply, err
}

// heap collects garbage, empties pools and returns the bytes of the heap in use.
func heap() int {
	var m runtime.MemStats
	for range 3 { // a sync.Pool is empty after two
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// In whatever way replies take memory, the kept replies to one worker stay within
// Limits.RememberedBytes, and the latest reply is kept.
func TestMemoryOfKeptRepliesIsBounded(t *testing.T) {
	short.Skip(t, "many large replies")
	const calls, limit, slack = 40, 4 * mib, 4 * mib
	served := agent.NewFunc[floodArgs, floodReply]("test.flood")
	for _, way := range []string{"bytes", "capacity", "tensor", "large view", "small view", "argument", "error", "small error"} {
		t.Run(way, func(t *testing.T) {
			var n atomic.Int32
			group := startGroup(t, 2, func(_ int, c *agent.Config) {
				c.Limits.RememberedBytes = limit
				c.Funcs = agent.Funcs{served.Serve(func(_ context.Context, args floodArgs) (floodReply, error) {
					n.Add(1)
					return serveFlood(args)
				}, agent.WithOnce())}
			})
			call := func(key string) error {
				args := floodArgs{way, "short"}
				if way == "argument" {
					args.Text = strings.Repeat("x", mib)
				}
				_, err := served.Call(t.Context(), group[0], "worker1", args, agent.WithIdempotencyKey(key))
				if remote := (*agent.RemoteError)(nil); errors.As(err, &remote) && !errors.Is(err, agent.ErrEvicted) {
					return nil
				}
				return err
			}
			require.NoError(t, call("first"))
			before := heap()
			for i := range calls {
				require.NoError(t, call(strconv.Itoa(i)))
			}
			grown := heap() - before
			t.Logf("%d calls with 1 MiB: %.1f MiB more than before", calls, float64(grown)/mib)
			require.Less(t, grown, limit+slack)
			require.NoError(t, call(strconv.Itoa(calls-1)))
			require.EqualValues(t, calls+1, n.Load())
		})
	}
}

// The memory of the tensors in a reply, on the host or on a device, is released after the reply is
// evicted, and not while it is kept.
func TestMemoryOfEvictedRepliesIsReleased(t *testing.T) {
	const calls, kept, slack = 40, 4, 4
	for _, kindName := range []string{device.KindCPU, npu.Name} {
		t.Run(kindName, func(t *testing.T) {
			kinds := []*delayed.Kind{npu.NewKind(), npu.NewKind()}
			var made, released atomic.Int32
			make1MiB := func() (device.Buffer, error) {
				if kindName == device.KindCPU {
					return device.Bytes(bytes.Repeat([]byte{6}, mib)), nil
				}
				on := kinds[1].Devices()[0]
				s, err := kinds[1].NewStream(on)
				if err != nil {
					return device.Buffer{}, err
				}
				buf, err := kinds[1].Alloc(on, mib, s)
				if err != nil {
					return buf, err
				}
				return buf, kinds[1].Write(buf, bytes.Repeat([]byte{6}, mib))
			}
			serve := func(context.Context, int) (*tensor.Tensor, error) {
				made.Add(1)
				buf, err := make1MiB()
				if err != nil {
					return nil, err
				}
				s, err := tensor.NewStorage(buf, func() { released.Add(1) })
				if err != nil {
					return nil, err
				}
				return tensor.FromStorage(s, tensor.U8, mib)
			}
			group := startGroup(t, 2, func(rank int, c *agent.Config) {
				c.Limits.RememberedBytes = kept*(mib+1024) + mib/2
				c.Funcs = agent.Funcs{zeroBytes.Serve(serve, agent.WithOnce())}
				c.Kinds = []device.Kind{kinds[rank]}
				c.DeviceMaps = npus(map[int]int{0: 0})
				c.NewContext = func(o pipe.Options) (*pipe.Context, error) {
					o.Channels = append(tensorpipe.DefaultProfile().Channels, pipe.ChannelEntry{Name: npu.Name, Priority: 1, Factory: npu.New(kinds[rank], basic.New())})
					return tensorpipe.NewContext(o)
				}
			})
			for _, k := range kinds {
				t.Cleanup(k.Close)
			}
			call := func(i int) error {
				_, err := zeroBytes.Call(t.Context(), group[0], "worker1", mib, agent.WithIdempotencyKey(strconv.Itoa(i)))
				return err
			}
			for i := range calls {
				require.NoError(t, call(i))
			}
			testwait.Finish(t, testwait.Start(func() bool {
				for released.Load() < calls-kept-slack && t.Context().Err() == nil {
					runtime.GC()
				}
				return true
			}))
			require.LessOrEqual(t, released.Load(), int32(calls-kept), "kept replies hold their memory")
			for i := range calls {
				if i < calls-kept {
					require.ErrorIs(t, call(i), agent.ErrEvicted)
				} else {
					require.NoError(t, call(i))
				}
			}
			require.EqualValues(t, calls, made.Load())
		})
	}
}

// aliveStorages counts the storages of 1 MiB that a function has made and that are still reachable.
type aliveStorages struct {
	mu   sync.Mutex
	made []weak.Pointer[tensor.Storage]
}

// make1MiB returns a new tensor in a storage of 1 MiB of its own, and records the storage, without
// keeping it reachable, for count.
func (a *aliveStorages) make1MiB() (*tensor.Tensor, error) {
	x, err := tensor.Zeros(tensor.U8, mib)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.made = append(a.made, weak.Make(x.Storage()))
	return x, nil
}

func (a *aliveStorages) count() (n int) {
	heap()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.made {
		if p.Value() != nil {
			n++
		}
	}
	return n
}

// Repeats that wait for a run keep no reply in memory beyond the limit while other runs have the
// handler slots: they get their reply when their run ends.
func TestMemoryOfRepliesToRepeatsIsBounded(t *testing.T) {
	const keys, kept = 60, 4
	var storages aliveStorages
	var n atomic.Int32
	var begin, end chan struct{}
	var endLast func()
	simulate(t, 2, func(_ int, c *agent.Config) {
		begin, end = make(chan struct{}), make(chan struct{})
		endLast = sync.OnceFunc(func() { close(end) })
		c.MaxHandlers = 1
		c.Limits.RememberedBytes = kept*(mib+1024) + mib/2
		c.Funcs = agent.Funcs{zeroBytes.Serve(func(context.Context, int) (*tensor.Tensor, error) {
			switch n.Add(1) {
			case 1:
				<-begin
			case keys:
				<-end
			}
			return storages.make1MiB()
		}, agent.WithOnce())}
	}, func(t *testing.T, group []*agent.Agent) {
		var calls []*agent.Future[*tensor.Tensor]
		for range 2 {
			for i := range keys {
				calls = append(calls, zeroBytes.Go(t.Context(), group[0], "worker1", mib, agent.WithIdempotencyKey(strconv.Itoa(i))))
			}
		}
		defer endLast()
		synctest.Wait() // all requests have arrived
		close(begin)
		synctest.Wait() // the last run is in progress
		require.EqualValues(t, keys, n.Load())
		require.LessOrEqual(t, storages.count(), kept)
		endLast()
		for _, f := range calls {
			_, err := f.Wait(t.Context())
			require.NoError(t, err)
		}
		require.EqualValues(t, keys, n.Load())
	})
}

// Repeats that are queued because their caller does not read replies keep no evicted reply in
// memory. When they start, those whose reply was evicted fail with ErrEvicted.
func TestQueuedRepeatsKeepNoReply(t *testing.T) {
	const keys, repeats, kept = 20, 3, 2
	var storages aliveStorages
	memory, ran := &blockingAllocator{}, &atomic.Int64{}
	proceed := make(chan struct{})
	simulate(t, 3, func(rank int, c *agent.Config) {
		withBlockedReader(memory, ran, nil)(rank, c)
		proceed = make(chan struct{})
		c.MaxHandlers = keys
		c.Limits.RememberedBytes = kept*(mib+1024) + mib/2
		c.Limits.AnswerBytes = 1
		c.Funcs = agent.Funcs{zeroBytes.Serve(func(context.Context, int) (*tensor.Tensor, error) {
			ran.Add(1)
			<-proceed
			return storages.make1MiB()
		}, agent.WithOnce())}
	}, func(t *testing.T, group []*agent.Agent) {
		var first, again []*agent.Future[*tensor.Tensor]
		call := func(i int) *agent.Future[*tensor.Tensor] {
			return zeroBytes.Go(t.Context(), group[0], "worker1", mib, agent.WithIdempotencyKey(strconv.Itoa(i)))
		}
		for i := range keys {
			first = append(first, call(i))
		}
		for range repeats {
			for i := range keys {
				again = append(again, call(i))
			}
		}
		synctest.Wait()
		close(proceed)
		synctest.Wait()
		require.EqualValues(t, keys, ran.Load())
		require.Equal(t, keys*repeats, queued(group[1]))
		close(memory.release)
		for _, f := range first {
			_, err := f.Wait(t.Context())
			require.NoError(t, err)
		}
		replied := 0
		for _, f := range again {
			if _, err := f.Wait(t.Context()); err == nil {
				replied++
			} else {
				require.ErrorIs(t, err, agent.ErrEvicted)
			}
		}
		require.Equal(t, kept*repeats, replied)
		require.EqualValues(t, keys, ran.Load())
		synctest.Wait()
		first, again = nil, nil
		require.LessOrEqual(t, storages.count(), kept)
	})
}

// The memory of a reply that is evicted while it is being sent stays valid until it was sent.
func TestReplyEvictedWhileItIsSent(t *testing.T) {
	memory, ran := &blockingAllocator{}, &atomic.Int64{}
	var released atomic.Bool
	sevens := agent.NewFunc[agent.None, *tensor.Tensor]("test.sevens")
	var n runs
	simulate(t, 2, func(rank int, c *agent.Config) {
		withBlockedReader(memory, ran, nil)(rank, c)
		c.Limits.RememberedBytes = mib + 2048
		c.Funcs = append(n.serveSized(), sevens.Serve(func(context.Context, agent.None) (*tensor.Tensor, error) {
			n.Add(1)
			data := bytes.Repeat([]byte{7}, mib)
			s, err := tensor.NewStorage(device.Bytes(data), func() { clear(data); released.Store(true) })
			if err != nil {
				return nil, err
			}
			return tensor.FromStorage(s, tensor.U8, mib)
		}, agent.WithOnce()))
	}, func(t *testing.T, group []*agent.Agent) {
		call := func() *agent.Future[*tensor.Tensor] {
			return sevens.Go(t.Context(), group[0], "worker1", agent.None{}, agent.WithIdempotencyKey("sevens"))
		}
		first, again := call(), call()
		synctest.Wait()
		run, err := keyed(t, group[0], "another", 4<<10)
		require.NoError(t, err)
		require.Equal(t, 2, run)
		_, err = call().Wait(t.Context())
		require.ErrorIs(t, err, agent.ErrEvicted)
		heap()
		require.False(t, released.Load())
		close(memory.release)
		for _, f := range []*agent.Future[*tensor.Tensor]{first, again} {
			x, err := f.Wait(t.Context())
			require.NoError(t, err)
			data, err := tensor.Data[byte](x)
			require.NoError(t, err)
			require.Equal(t, bytes.Repeat([]byte{7}, mib), data)
		}
		require.EqualValues(t, 2, n.Load())
	})
}
