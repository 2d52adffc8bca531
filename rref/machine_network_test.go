package rref_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// errInjected is the error of messages that the machine makes fail.
var errInjected = errors.New("injected failure")

// machineLease is the lease of the machine's workers, in simulated time.
const machineLease = 12 * time.Second

// pair is two incarnations of workers: one that sends and one that receives.
type pair struct{ from, to [16]byte }

// silence is a time in which a worker has received nothing from another one.
type silence struct{ begin, end time.Time }

// weather is the faults of the messages of a machine, and when messages were received.
type weather struct {
	mu     sync.Mutex
	rng    *rand.Rand
	rate   float64 // the share of messages with a fault
	cuts   map[[2]string]time.Time
	heard  map[pair]time.Time
	silent map[pair][]silence // longer than a lease
}

func newWeather(seed uint64) *weather {
	return &weather{
		rng: rand.New(rand.NewPCG(seed, 1)), cuts: map[[2]string]time.Time{},
		heard: map[pair]time.Time{}, silent: map[pair][]silence{},
	}
}

// hook returns the FaultHook of the worker with that name.
func (w *weather) hook(from string) func(*agent.Message) agent.Fault {
	return func(m *agent.Message) agent.Fault {
		w.mu.Lock()
		defer w.mu.Unlock()
		if time.Now().Before(w.cuts[[2]string{from, m.Peer.Name}]) {
			return agent.Fault{Drop: true}
		}
		if w.rng.Float64() >= w.rate {
			return agent.Fault{}
		}
		delay := time.Duration(w.rng.Int64N(int64(machineLease / 20)))
		switch w.rng.IntN(8) {
		case 0, 1, 2:
			return agent.Fault{Drop: true}
		case 3:
			return agent.Fault{Err: errInjected}
		case 4:
			return agent.Fault{Extra: 1 + w.rng.IntN(2)}
		case 5:
			return agent.Fault{Extra: 1, Delay: delay}
		case 6:
			return agent.Fault{Delay: delay * 25} // up to 1.25 leases
		default:
			return agent.Fault{Delay: delay}
		}
	}
}

// received records that a worker has received m. It is Interceptor.Received of each worker.
func (w *weather) received(ctx context.Context, m *agent.Message) (context.Context, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, now := pair{m.Incarnation(), m.Agent().Incarnation()}, time.Now()
	if last := w.heard[p]; now.Sub(last) > machineLease {
		w.silent[p] = append(w.silent[p], silence{last, now})
	}
	w.heard[p] = now
	return ctx, nil
}

// mayBeFenced reports whether the owner may have fenced the user after the time born, because it has
// heard nothing from it for more than a lease.
func (w *weather) mayBeFenced(user, owner [16]byte, born time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := pair{user, owner}
	for _, s := range append(slices.Clone(w.silent[p]), silence{w.heard[p], time.Now()}) {
		if born.Sub(s.begin) > machineLease+2*time.Second { // an earlier lease was over: this one is new
			s.begin = born
		}
		if s.end.After(born) && s.end.Sub(s.begin) > machineLease {
			return true
		}
	}
	return false
}

// cut makes all messages between two workers be lost for a while.
func (w *weather) cut(a, b string, d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	until := time.Now().Add(d)
	w.cuts[[2]string{a, b}], w.cuts[[2]string{b, a}] = until, until
}

// setRate sets the share of messages that have a fault from now on. A rate of 0 also ends all cuts.
func (w *weather) setRate(rate float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rate = rate; rate == 0 {
		clear(w.cuts)
	}
}
