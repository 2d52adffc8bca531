package agent_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/simnet"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// sized returns that many bytes.
var sized = agent.NewFunc[int, []byte]("test.sized")

// runs counts the runs of a function.
type runs struct{ atomic.Int32 }

func (n *runs) serveSized() agent.Funcs {
	return agent.Funcs{sized.Serve(func(_ context.Context, bytes int) ([]byte, error) {
		reply := make([]byte, bytes)
		if bytes > 0 {
			reply[0] = byte(n.Add(1))
		}
		return reply, nil
	}, agent.WithOnce())}
}

// keyed calls the function sized at worker1 with a key of the application, and requires a reply of
// this many bytes, at least 1. It returns the number of the run that made the reply. After an error
// the number is 0.
func keyed(t *testing.T, from *agent.Agent, key string, bytes int) (run int, err error) {
	t.Helper()
	reply, err := sized.Call(t.Context(), from, "worker1", bytes, agent.WithIdempotencyKey(key))
	if err != nil {
		return 0, err
	}
	require.Len(t, reply, bytes)
	return int(reply[0]), nil
}

// Beyond the limit on the number or the bytes of kept replies, the oldest are evicted. For their
// keys the function does not run again, and the calls fail with ErrEvicted.
func TestOnceIsBounded(t *testing.T) {
	const kib100 = 100 << 10
	for name, c := range map[string]struct {
		limits agent.Limits
		bytes  int
	}{
		"by number": {agent.Limits{MaxRemembered: 3}, 1},
		"by bytes":  {agent.Limits{RememberedBytes: 3*(kib100+1024) + kib100/2}, kib100},
	} {
		t.Run(name, func(t *testing.T) {
			var n runs
			group := startGroup(t, 2, func(_ int, c2 *agent.Config) { c2.Limits, c2.Funcs = c.limits, n.serveSized() })
			for _, call := range []struct {
				key  string
				want int // 0: ErrEvicted
			}{
				{"a", 1}, {"b", 2}, {"c", 3}, {"a", 1}, {"d", 4}, {"a", 0},
				{"b", 2}, {"c", 3}, {"d", 4}, {"e", 5}, {"b", 0}, {"a", 0}, {"c", 3},
			} {
				run, err := keyed(t, group[0], call.key, c.bytes)
				if call.want == 0 {
					require.ErrorIs(t, err, agent.ErrEvicted)
					setting := "Limits.MaxRemembered there, which is 3"
					if c.limits.RememberedBytes > 0 {
						setting = "Limits.RememberedBytes there, which is "
					}
					require.ErrorContains(t, err, "the function has run for this key: raise "+setting)
					continue
				}
				require.NoError(t, err)
				require.Equal(t, call.want, run, "key %s", call.key)
			}
			require.EqualValues(t, 5, n.Load())
		})
	}
}

// A reply that is larger than Limits.RememberedBytes is sent to all requests that arrived before
// the reply. It evicts no other reply, and later requests with its key fail with ErrEvicted.
func TestOnceReplyBeyondTheLimit(t *testing.T) {
	var n runs
	begun, proceed := make(chan struct{}), make(chan struct{})
	large := agent.NewFunc[agent.None, []byte]("test.large")
	simulate(t, 2, func(_ int, c *agent.Config) {
		begun, proceed = make(chan struct{}), make(chan struct{})
		c.Limits.RememberedBytes = 64 << 10
		c.Funcs = append(n.serveSized(), large.Serve(func(context.Context, agent.None) ([]byte, error) {
			n.Add(1)
			close(begun)
			<-proceed
			return make([]byte, 1<<20), nil
		}, agent.WithOnce()))
	}, func(t *testing.T, group []*agent.Agent) {
		run, err := keyed(t, group[0], "small", 10)
		require.NoError(t, err)
		require.Equal(t, 1, run)

		var calls []*agent.Future[[]byte]
		for range 3 {
			calls = append(calls, large.Go(t.Context(), group[0], "worker1", agent.None{}, agent.WithIdempotencyKey("large")))
		}
		<-begun
		synctest.Wait()
		close(proceed)
		for _, call := range calls {
			reply, err := call.Wait(t.Context())
			require.NoError(t, err)
			require.Len(t, reply, 1<<20)
		}
		_, err = large.Call(t.Context(), group[0], "worker1", agent.None{}, agent.WithIdempotencyKey("large"))
		require.ErrorIs(t, err, agent.ErrEvicted)
		require.ErrorContains(t, err, "raise Limits.RememberedBytes there, which is 65536")

		run, err = keyed(t, group[0], "small", 10)
		require.NoError(t, err)
		require.Equal(t, 1, run)
		require.EqualValues(t, 2, n.Load())
	})
}

const (
	keysAllowed     = 64
	keyBytesAllowed = 64 * keysAllowed
)

// If a worker uses more keys than Limits.KeyBytes allows within Limits.RetryWindow, calls with
// further keys fail with ErrOverloaded until the older keys have expired. Calls of other workers
// and calls WithRetry succeed.
func TestOnceWithTooManyKeys(t *testing.T) {
	var n runs
	simulate(t, 3, func(_ int, c *agent.Config) {
		c.Limits.MaxRemembered, c.Limits.KeyBytes, c.Limits.RetryWindow = 1, keyBytesAllowed, time.Minute
		c.Funcs = n.serveSized()
	}, func(t *testing.T, group []*agent.Agent) {
		for i := range keysAllowed {
			_, err := keyed(t, group[0], strconv.Itoa(i), 1)
			require.NoError(t, err)
		}
		_, err := keyed(t, group[0], "one more", 1)
		require.ErrorIs(t, err, agent.ErrOverloaded)
		require.ErrorContains(t, err, "worker0 has used 64 keys within 1m30s: raise Limits.KeyBytes there, which is 4096, or lower Limits.RetryWindow, which is 1m0s")
		_, err = keyed(t, group[2], "one more", 1)
		require.NoError(t, err)
		_, err = sized.Call(t.Context(), group[0], "worker1", 1, agent.WithRetry(agent.Retry{}))
		require.NoError(t, err)
		require.EqualValues(t, keysAllowed+2, n.Load())

		<-time.NewTimer(45 * time.Second).C
		_, err = keyed(t, group[0], "0", 1)
		require.ErrorIs(t, err, agent.ErrEvicted, "which renews it")
		<-time.NewTimer(46 * time.Second).C
		_, err = keyed(t, group[0], "0", 1)
		require.ErrorIs(t, err, agent.ErrEvicted)
		for _, key := range []string{"one more", "1"} {
			_, err = keyed(t, group[0], key, 1)
			require.NoError(t, err)
		}
		require.EqualValues(t, keysAllowed+4, n.Load())
	})
}

// If the reply to a call WithRetry is lost and evicted, the next attempt fails with ErrEvicted,
// however many other calls come between. If the first request is lost, the next attempt runs the
// function, unless the key is older than all keys that are remembered.
func TestOnceAfterManyNumberedKeys(t *testing.T) {
	for name, c := range map[string]struct {
		kind     agent.Kind // the message of the first call that is lost
		others   int
		keyBytes int    // 0: the default
		runs     int    // of the first call
		raise    string // the limit that the error names; empty if there is none
	}{
		"reply is lost":                        {agent.KindReply, 3 * keysAllowed, 0, 1, "Limits.MaxRemembered there, which is 1"},
		"reply is lost, fewer than known":      {agent.KindReply, keysAllowed / 2, keyBytesAllowed, 1, "Limits.MaxRemembered there, which is 1"},
		"reply is lost, more than are known":   {agent.KindReply, 3 * keysAllowed, keyBytesAllowed, 1, "Limits.KeyBytes there, which is 4096"},
		"request is lost":                      {agent.KindRequest, 2000, 0, 1, ""},
		"request is lost, fewer than known":    {agent.KindRequest, keysAllowed / 2, keyBytesAllowed, 1, ""},
		"request is lost, more than are known": {agent.KindRequest, 3 * keysAllowed, keyBytesAllowed, 0, "Limits.KeyBytes there, which is 4096"},
	} {
		t.Run(name, func(t *testing.T) {
			var lost atomic.Bool
			var first, others runs
			which := agent.NewFunc[bool, int]("test.which")
			simulate(t, 2, func(_ int, config *agent.Config) {
				config.Limits.MaxRemembered, config.Limits.KeyBytes = 1, c.keyBytes
				config.FaultHook = func(m *agent.Message) agent.Fault {
					return agent.Fault{Drop: m.Name == "test.which" && m.Kind == c.kind && !lost.Swap(true)}
				}
				config.Funcs = agent.Funcs{which.Serve(func(_ context.Context, isFirst bool) (int, error) {
					if isFirst {
						return int(first.Add(1)), nil
					}
					return int(others.Add(1)), nil
				}, agent.WithOnce())}
			}, func(t *testing.T, group []*agent.Agent) {
				retry := agent.WithRetry(agent.Retry{Delay: time.Hour})
				call := which.Go(t.Context(), group[0], "worker1", true, retry, agent.WithTimeout(time.Minute))
				synctest.Wait()
				for range c.others {
					_, err := which.Call(t.Context(), group[0], "worker1", false, retry)
					require.NoError(t, err)
				}
				_, err := call.Wait(t.Context())
				if c.raise != "" {
					require.ErrorIs(t, err, agent.ErrEvicted)
					require.ErrorContains(t, err, "raise "+c.raise)
				} else {
					require.NoError(t, err)
				}
				require.EqualValues(t, c.runs, first.Load())
				require.EqualValues(t, c.others, others.Load())
			})
		})
	}
}

// The keys and kept replies of a worker are remembered after its pipe has ended.
func TestOnceOverAnotherPipe(t *testing.T) {
	var n runs
	network := simnet.New(uv.New())
	group := startGroup(t, 2, func(_ int, c *agent.Config) {
		overLinks(c, network)
		c.Limits.MaxRemembered = 1
		c.Funcs = n.serveSized()
	})
	for i, key := range []string{"evicted", "kept"} {
		run, err := keyed(t, group[0], key, 1)
		require.NoError(t, err)
		require.Equal(t, i+1, run)
	}
	for _, l := range network.Links() {
		l.Cut()
	}
	retry := agent.WithRetry(agent.Retry{Max: 100, Delay: 10 * time.Millisecond, Backoff: 1})
	reply, err := sized.Call(t.Context(), group[0], "worker1", 1, agent.WithIdempotencyKey("kept"), retry)
	require.NoError(t, err)
	require.Equal(t, []byte{2}, reply)
	_, err = sized.Call(t.Context(), group[0], "worker1", 1, agent.WithIdempotencyKey("evicted"), retry)
	require.ErrorIs(t, err, agent.ErrEvicted)
	require.EqualValues(t, 2, n.Load())
}

// The keys of one incarnation of a worker have no effect on the calls of another incarnation.
func TestOnceForAnotherIncarnation(t *testing.T) {
	var n runs
	synctest.Test(t, func(t *testing.T) {
		network := mem.NewNetwork()
		s := store.NewMemory(store.Limits{})
		defer s.Close()
		join := func(name string) *agent.Agent {
			c := agent.Config{Name: name, Rank: -1, Store: s, Replace: true, Funcs: n.serveSized(), Logger: slog.New(slog.DiscardHandler)}
			c.Limits.MaxRemembered, c.Limits.KeyBytes = 1, keyBytesAllowed
			inMemory(&c, network)
			a, err := agent.Join(t.Context(), c)
			require.NoError(t, err)
			return a
		}
		served, old := join("worker1"), join("worker0")
		defer served.Close()
		defer old.Close()
		call := func(from *agent.Agent) {
			for range 2 * keysAllowed {
				_, err := sized.Call(t.Context(), from, "worker1", 1, agent.WithRetry(agent.Retry{}))
				require.NoError(t, err)
			}
			for i := range keysAllowed {
				_, err := keyed(t, from, strconv.Itoa(i), 1)
				require.NoError(t, err)
			}
		}
		call(old)
		now := join("worker0")
		defer now.Close()
		call(now)
		require.EqualValues(t, 2*3*keysAllowed, n.Load())
	})
}

// Repeats that arrive while replies are evicted get the reply of the only run for their key, or
// ErrEvicted.
func TestOnceWhileRepliesAreEvicted(t *testing.T) {
	const keys, callers, each = 20, 8, 30
	var ran [keys]atomic.Int32
	type keyedReply struct {
		Key  int
		Data []byte
		Rows *tensor.Tensor
	}
	mixed := agent.NewFunc[int, keyedReply]("test.mixed")
	group := startGroup(t, 2, func(_ int, c *agent.Config) {
		c.Limits.RememberedBytes = 512 << 10
		c.Funcs = agent.Funcs{mixed.Serve(func(_ context.Context, key int) (keyedReply, error) {
			ran[key].Add(1)
			rows, err := tensor.FromSlice(bytes.Repeat([]byte{byte(key)}, (key+1)*8<<10), (key+1)*8<<10) // some of them are copied
			return keyedReply{key, make([]byte, key<<10), rows}, err
		}, agent.WithOnce())}
	})
	var all sync.WaitGroup
	errs := make(chan error, callers*each)
	for caller := range callers {
		all.Go(func() {
			for i := range each {
				key := (7*caller + 3*i) % keys
				got, err := mixed.Call(t.Context(), group[0], "worker1", key, agent.WithIdempotencyKey(strconv.Itoa(key)))
				switch {
				case errors.Is(err, agent.ErrEvicted):
					err = nil
				case err == nil:
					var rows []byte
					rows, err = tensor.Data[byte](got.Rows)
					if got.Key != key || len(got.Data) != key<<10 || !bytes.Equal(rows, bytes.Repeat([]byte{byte(key)}, (key+1)*8<<10)) {
						err = errors.New("reply of another key")
					}
				}
				errs <- err
			}
		})
	}
	all.Wait()
	for range callers * each {
		require.NoError(t, <-errs)
	}
	for key := range keys {
		require.EqualValues(t, 1, ran[key].Load(), "key %d", key)
	}
}

// A kept reply that is sent again has the headers that interceptors have set when it was made; the
// interceptors of the sender do not run again.
func TestOnceRepeatsInterceptedReply(t *testing.T) {
	const header = "test.number"
	var made, seen atomic.Int32
	var n runs
	group := startGroup(t, 2, func(rank int, c *agent.Config) {
		c.Funcs = n.serveSized()
		c.Interceptors = []agent.Interceptor{{
			Encoding: func(_ context.Context, m *agent.Message) error {
				if m.Kind == agent.KindReply {
					m.SetHeader(header, []byte{byte(made.Add(1))})
				}
				return nil
			},
			Decoded: func(_ context.Context, m *agent.Message) error {
				if data, ok := m.Header(header); ok && rank == 0 {
					seen.Add(int32(data[0]))
				}
				return nil
			},
		}}
	})
	for range 3 {
		run, err := keyed(t, group[0], "same", 100)
		require.NoError(t, err)
		require.Equal(t, 1, run)
	}
	require.EqualValues(t, 1, made.Load())
	require.EqualValues(t, 3, seen.Load())
}

// The tensors of a kept reply are sent again to the same device as before, and the caller's stream
// reads them after the work of the only run.
func TestOnceOnDevices(t *testing.T) {
	group, kinds := startDevices(t, map[int]int{0: 1}, nil)
	mine, err := kinds[0].NewStream(kinds[0].Devices()[0])
	require.NoError(t, err)
	ctx := device.WithStream(t.Context(), mine)
	for range 3 {
		x, _ := onDevice(t, kinds[0], 0, 1<<20)
		y, err := plusOne.Call(ctx, group[0], "worker1", x, agent.WithIdempotencyKey("same"))
		require.NoError(t, err)
		require.Equal(t, kinds[0].Devices()[0], y.Device())
		requireSix(t, kinds[0], y, mine)
	}
}

// If the application has released a tensor of a kept reply, a repeated call fails with ErrResult.
func TestOnceWithReleasedMemory(t *testing.T) {
	results := make(chan *tensor.Tensor, 1)
	group := startGroup(t, 2, func(_ int, c *agent.Config) {
		c.Funcs = agent.Funcs{zeroBytes.Serve(func(_ context.Context, n int) (*tensor.Tensor, error) {
			x, err := tensor.Zeros(tensor.U8, n)
			results <- x
			return x, err
		}, agent.WithOnce())}
	})
	_, err := zeroBytes.Call(t.Context(), group[0], "worker1", 1<<20, agent.WithIdempotencyKey("key"))
	require.NoError(t, err)
	(<-results).Storage().Release()
	_, err = zeroBytes.Call(t.Context(), group[0], "worker1", 1<<20, agent.WithIdempotencyKey("key"))
	require.ErrorIs(t, err, agent.ErrResult)
	require.ErrorContains(t, err, "storage")
}
