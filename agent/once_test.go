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
	"github.com/tensorpipe-go/tensorpipe/internal/simnet"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// sized answers with as many bytes as it is asked for.
var sized = agent.NewFunc[int, []byte]("test.sized")

// runs counts how often a function has run.
type runs struct{ atomic.Int32 }

func (n *runs) serveSized() agent.Funcs {
	return agent.Funcs{sized.Serve(func(_ context.Context, bytes int) ([]byte, error) {
		answer := make([]byte, bytes)
		if bytes > 0 {
			answer[0] = byte(n.Add(1))
		}
		return answer, nil
	}, agent.Once())}
}

// keyed calls sized with a key of the application, and returns which run answered.
func keyed(t *testing.T, from *agent.Agent, key string, bytes int) (run int, err error) {
	t.Helper()
	answer, err := sized.Call(t.Context(), from, "worker1", bytes, agent.Idempotent(key))
	if err != nil {
		return 0, err
	}
	require.Len(t, answer, bytes)
	return int(answer[0]), nil
}

// The oldest answers are evicted first. A function does not run again for their keys.
func TestOnceIsBounded(t *testing.T) {
	const kib100 = 100 << 10
	for name, c := range map[string]struct {
		limits agent.Limits
		bytes  int
	}{
		"by number": {agent.Limits{Remembered: 3}, 1},
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
					setting := "Limits.Remembered there, which is 3"
					if c.limits.RememberedBytes > 0 {
						setting = "Limits.RememberedBytes there, which is "
					}
					require.ErrorContains(t, err, "test.sized has run on worker1 for this key: raise "+setting)
					continue
				}
				require.NoError(t, err)
				require.Equal(t, call.want, run, "key %s", call.key)
			}
			require.EqualValues(t, 5, n.Load())
		})
	}
}

// An answer beyond the limit goes to all requests that were there before it, and evicts
// no others.
func TestOnceLargerThanTheLimit(t *testing.T) {
	var n runs
	begun, goOn := make(chan struct{}), make(chan struct{})
	large := agent.NewFunc[agent.None, []byte]("test.large")
	simulate(t, 2, func(_ int, c *agent.Config) {
		begun, goOn = make(chan struct{}), make(chan struct{})
		c.Limits.RememberedBytes = 64 << 10
		c.Funcs = append(n.serveSized(), large.Serve(func(context.Context, agent.None) ([]byte, error) {
			n.Add(1)
			close(begun)
			<-goOn
			return make([]byte, 1<<20), nil
		}, agent.Once()))
	}, func(t *testing.T, group []*agent.Agent) {
		run, err := keyed(t, group[0], "small", 10)
		require.NoError(t, err)
		require.Equal(t, 1, run)

		var calls []*agent.Future[[]byte]
		for range 3 {
			calls = append(calls, large.Go(t.Context(), group[0], "worker1", agent.None{}, agent.Idempotent("large")))
		}
		<-begun
		synctest.Wait()
		close(goOn)
		for _, call := range calls {
			answer, err := call.Wait(t.Context())
			require.NoError(t, err)
			require.Len(t, answer, 1<<20)
		}
		_, err = large.Call(t.Context(), group[0], "worker1", agent.None{}, agent.Idempotent("large"))
		require.ErrorIs(t, err, agent.ErrEvicted)
		require.ErrorContains(t, err, "raise Limits.RememberedBytes there, which is 65536")

		run, err = keyed(t, group[0], "small", 10)
		require.NoError(t, err)
		require.Equal(t, 1, run)
		require.EqualValues(t, 2, n.Load())
	})
}

// keysKnown is the number of keys that bytesOfKeys allows.
const (
	keysKnown   = 64
	bytesOfKeys = 64 * keysKnown
)

// A worker with more keys than are known within the window has no more functions run by
// keys. It is the only one, and only until the window is over.
func TestOnceWithTooManyKeys(t *testing.T) {
	var n runs
	simulate(t, 3, func(_ int, c *agent.Config) {
		c.Limits.Remembered, c.Limits.KeyBytes, c.Limits.RetryWindow = 1, bytesOfKeys, time.Minute
		c.Funcs = n.serveSized()
	}, func(t *testing.T, group []*agent.Agent) {
		for i := range keysKnown {
			_, err := keyed(t, group[0], strconv.Itoa(i), 1)
			require.NoError(t, err)
		}
		_, err := keyed(t, group[0], "one more", 1)
		require.ErrorIs(t, err, agent.ErrOverloaded)
		require.ErrorContains(t, err, "worker0 has used 64 keys on worker1 within 1m30s: raise Limits.KeyBytes there, which is 4096, or lower Limits.RetryWindow, which is 1m0s")
		_, err = keyed(t, group[2], "one more", 1)
		require.NoError(t, err)
		_, err = sized.Call(t.Context(), group[0], "worker1", 1, agent.WithRetry(agent.Retry{}))
		require.NoError(t, err)
		require.EqualValues(t, keysKnown+2, n.Load())

		<-time.NewTimer(45 * time.Second).C
		_, err = keyed(t, group[0], "0", 1)
		require.ErrorIs(t, err, agent.ErrEvicted, "which makes it newer")
		<-time.NewTimer(46 * time.Second).C
		_, err = keyed(t, group[0], "0", 1)
		require.ErrorIs(t, err, agent.ErrEvicted)
		for _, key := range []string{"one more", "1"} {
			_, err = keyed(t, group[0], key, 1)
			require.NoError(t, err)
		}
		require.EqualValues(t, keysKnown+4, n.Load())
	})
}

// A call WithRetry whose answer is lost gets the error however many others come before
// its next attempt. One of which no attempt came runs, unless it is older than all keys
// that are known.
func TestOnceAfterManyNumberedKeys(t *testing.T) {
	for name, c := range map[string]struct {
		kind     agent.Kind // that is lost of the first call
		others   int
		keyBytes int    // 0: the default
		runs     int    // of the first call
		raise    string // the limit that the error names, if there is one
	}{
		"answer is lost":                       {agent.KindReply, 3 * keysKnown, 0, 1, "Limits.Remembered there, which is 1"},
		"answer is lost, fewer than known":     {agent.KindReply, keysKnown / 2, bytesOfKeys, 1, "Limits.Remembered there, which is 1"},
		"answer is lost, more than are known":  {agent.KindReply, 3 * keysKnown, bytesOfKeys, 1, "Limits.KeyBytes there, which is 4096"},
		"request is lost":                      {agent.KindRequest, 2000, 0, 1, ""},
		"request is lost, fewer than known":    {agent.KindRequest, keysKnown / 2, bytesOfKeys, 1, ""},
		"request is lost, more than are known": {agent.KindRequest, 3 * keysKnown, bytesOfKeys, 0, "Limits.KeyBytes there, which is 4096"},
	} {
		t.Run(name, func(t *testing.T) {
			var lost atomic.Bool
			var first, others runs
			which := agent.NewFunc[bool, int]("test.which")
			simulate(t, 2, func(_ int, config *agent.Config) {
				config.Limits.Remembered, config.Limits.KeyBytes = 1, c.keyBytes
				config.Outgoing = func(m *agent.Message) agent.Fate {
					return agent.Fate{Drop: m.Name == "test.which" && m.Kind == c.kind && !lost.Swap(true)}
				}
				config.Funcs = agent.Funcs{which.Serve(func(_ context.Context, isFirst bool) (int, error) {
					if isFirst {
						return int(first.Add(1)), nil
					}
					return int(others.Add(1)), nil
				}, agent.Once())}
			}, func(t *testing.T, group []*agent.Agent) {
				retry := agent.WithRetry(agent.Retry{Delay: time.Hour})
				call := which.Go(t.Context(), group[0], "worker1", true, retry, agent.Timeout(time.Minute))
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

// The keys of a worker are known after its pipe has ended.
func TestOnceOverAnotherPipe(t *testing.T) {
	var n runs
	network := simnet.New(uv.New())
	group := startGroup(t, 2, func(_ int, c *agent.Config) {
		overLinks(c, network)
		c.Limits.Remembered = 1
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
	answer, err := sized.Call(t.Context(), group[0], "worker1", 1, agent.Idempotent("kept"), retry)
	require.NoError(t, err)
	require.Equal(t, []byte{2}, answer)
	_, err = sized.Call(t.Context(), group[0], "worker1", 1, agent.Idempotent("evicted"), retry)
	require.ErrorIs(t, err, agent.ErrEvicted)
	require.EqualValues(t, 2, n.Load())
}

// Another incarnation of a worker has keys of its own.
func TestOnceForAnotherIncarnation(t *testing.T) {
	var n runs
	synctest.Test(t, func(t *testing.T) {
		network := mem.NewNetwork()
		s := store.NewMemory(store.Limits{})
		defer s.Close()
		join := func(name string) *agent.Agent {
			c := agent.Config{Name: name, Rank: -1, Store: s, Replace: true, Funcs: n.serveSized(), Logger: slog.New(slog.DiscardHandler)}
			c.Limits.Remembered, c.Limits.KeyBytes = 1, bytesOfKeys
			inMemory(&c, network)
			a, err := agent.Join(t.Context(), c)
			require.NoError(t, err)
			return a
		}
		served, old := join("worker1"), join("worker0")
		defer served.Close()
		defer old.Close()
		call := func(from *agent.Agent) {
			for range 2 * keysKnown {
				_, err := sized.Call(t.Context(), from, "worker1", 1, agent.WithRetry(agent.Retry{}))
				require.NoError(t, err)
			}
			for i := range keysKnown {
				_, err := keyed(t, from, strconv.Itoa(i), 1)
				require.NoError(t, err)
			}
		}
		call(old)
		now := join("worker0")
		defer now.Close()
		call(now)
		require.EqualValues(t, 2*3*keysKnown, n.Load())
	})
}

// Repeats that come while answers are evicted get the answer of the only run, or the error.
func TestOnceWhileAnswersAreEvicted(t *testing.T) {
	const keys, callers, each = 20, 8, 30
	var ran [keys]atomic.Int32
	type answer struct {
		Key  int
		Data []byte
		Rows *tensor.Tensor
	}
	mixed := agent.NewFunc[int, answer]("test.mixed")
	group := startGroup(t, 2, func(_ int, c *agent.Config) {
		c.Limits.RememberedBytes = 512 << 10
		c.Funcs = agent.Funcs{mixed.Serve(func(_ context.Context, key int) (answer, error) {
			ran[key].Add(1)
			rows, err := tensor.FromSlice(bytes.Repeat([]byte{byte(key)}, (key+1)*8<<10), (key+1)*8<<10) // some of them are copied
			return answer{key, make([]byte, key<<10), rows}, err
		}, agent.Once())}
	})
	var all sync.WaitGroup
	errs := make(chan error, callers*each)
	for caller := range callers {
		all.Go(func() {
			for i := range each {
				key := (7*caller + 3*i) % keys
				got, err := mixed.Call(t.Context(), group[0], "worker1", key, agent.Idempotent(strconv.Itoa(key)))
				switch {
				case errors.Is(err, agent.ErrEvicted):
					err = nil
				case err == nil:
					var rows []byte
					rows, err = tensor.Data[byte](got.Rows)
					if got.Key != key || len(got.Data) != key<<10 || !bytes.Equal(rows, bytes.Repeat([]byte{byte(key)}, (key+1)*8<<10)) {
						err = errors.New("answer of another key")
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

// An answer that is sent again is what interceptors made of it first.
func TestOnceSendsTheSameAgain(t *testing.T) {
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

// The tensors of an answer that is sent again go to the same device as at first, and are
// ordered after the work of the only run.
func TestOnceOnDevices(t *testing.T) {
	group, kinds := startDevices(t, map[int]int{0: 1}, nil)
	mine, err := kinds[0].NewStream(kinds[0].Devices()[0])
	require.NoError(t, err)
	ctx := device.WithStream(t.Context(), mine)
	for range 3 {
		x, _ := onDevice(t, kinds[0], 0, 1<<20)
		y, err := plusOne.Call(ctx, group[0], "worker1", x, agent.Idempotent("same"))
		require.NoError(t, err)
		require.Equal(t, kinds[0].Devices()[0], y.Device())
		requireSix(t, kinds[0], y, mine)
	}
}

// Memory that the application has released, although its answer is kept, is not sent.
func TestOnceWithReleasedMemory(t *testing.T) {
	given := make(chan *tensor.Tensor, 1)
	group := startGroup(t, 2, func(_ int, c *agent.Config) {
		c.Funcs = agent.Funcs{ample.Serve(func(_ context.Context, n int) (*tensor.Tensor, error) {
			x, err := tensor.Zeros(tensor.U8, n)
			given <- x
			return x, err
		}, agent.Once())}
	})
	_, err := ample.Call(t.Context(), group[0], "worker1", 1<<20, agent.Idempotent("key"))
	require.NoError(t, err)
	(<-given).Storage().Release()
	_, err = ample.Call(t.Context(), group[0], "worker1", 1<<20, agent.Idempotent("key"))
	require.ErrorIs(t, err, agent.ErrResult)
	require.ErrorContains(t, err, "storage")
}
