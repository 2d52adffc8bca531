package agent

import (
	"context"
	"fmt"
	"runtime"
	"runtime/metrics"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/roster"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/internal/race"
	"github.com/tensorpipe-go/tensorpipe/internal/rawpeer"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// fixedCost is what a pipe costs without any byte, at both ends, which here are in one
// process.
const fixedCost = 128 << 10

// live is the number of bytes in use on the heap and in stacks, without garbage.
func live() int {
	runtime.GC()
	m := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(m)
	return int(m[0].Value.Uint64() + m[1].Value.Uint64())
}

func plainTCP(o pipe.Options) (*pipe.Context, error) {
	o.Transports = []pipe.TransportEntry{{Name: "uv", Transport: uv.New()}}
	o.Channels = []pipe.ChannelEntry{{Name: basic.Name, Factory: basic.New()}}
	return pipe.New(o)
}

// A thousand strangers each send most of a large message and stop. They hold no more than
// the limit, and a thousand members that come at the same time are all let in.
func TestMembersAmongStrangers(t *testing.T) {
	const limit = 64 << 20 // the default
	strangers, members := race.Pick(1000, 60), race.Pick(1000, 200)
	var group store.Store
	a, url := loner(t, func(c *Config) {
		group = c.Store
		c.WorldSize, c.Token, c.NewContext, c.HandshakeTimeout = 0, []byte("secret"), plainTCP, time.Minute
	})
	hellos := make([]hello, members)
	for i := range hellos {
		m := roster.Member{Name: fmt.Sprintf("member%d", i), Rank: 1 + i, Incarnation: roster.Incarnation{1, byte(i), byte(i >> 8)}, URLs: []string{url},
			MinVersion: protocol, MaxVersion: protocol}
		_, err := roster.JoinDynamic(t.Context(), group, "default", m)
		require.NoError(t, err)
		hellos[i] = hello{Oldest: protocol, Newest: protocol, Group: "default", To: a.identity(),
			From: identity{Name: m.Name, Rank: m.Rank, Incarnation: m.Incarnation}, Room: 1 << 20}
	}

	empty := live()
	crowd := make([]*rawpeer.Peer, strangers)
	for i := range crowd {
		var err error
		crowd[i], err = rawpeer.Dial(url)
		require.NoError(t, err)
		t.Cleanup(crowd[i].Close)
	}
	idle := live()
	require.Less(t, (idle-empty)/strangers, fixedCost)

	part := rawpeer.Message(4 << 20)[:4_000_000]
	idle += len(part)
	knocking, err := plainTCP(pipe.Options{Dialect: pipe.DialectNative, HandshakeTimeout: time.Minute})
	require.NoError(t, err)
	defer func() { require.NoError(t, knocking.Close()) }()
	let := make([]error, members)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var crowding sync.WaitGroup
		for _, s := range crowd {
			crowding.Go(func() { s.Send(part) })
		}
		for i := range members {
			crowding.Go(func() { let[i] = knock(t.Context(), knocking, url, &hellos[i], a.token) })
		}
		crowding.Wait()
	}()
	most := 0
	for over := false; !over; {
		select {
		case <-done:
			over = true
		default:
		}
		most = max(most, live()-idle)
	}
	s := a.pipes.Stats()
	t.Logf("%d strangers and %d members, %d KiB each: %d MiB held, %d disconnected", strangers, members, (idle-empty)/strangers>>10, most>>20, s.PeersEvicted)
	for _, err := range let {
		require.NoError(t, err)
	}
	require.Less(t, most, 2*limit+members*fixedCost, "a buffer that grows is there twice for a moment")
	require.LessOrEqual(t, s.BytesUnadmitted, limit)
	require.Positive(t, s.PeersEvicted)
}

// knock opens a pipe as the member that a hello is from, and returns why it is not let in.
func knock(ctx context.Context, c *pipe.Context, url string, h *hello, token []byte) error {
	line, err := c.Dial(ctx, url)
	if err != nil {
		return err
	}
	if err := say(ctx, line, h); err != nil {
		return err
	}
	var w welcome
	if err := hear(ctx, line, &w); err != nil {
		return err
	}
	if w.Refusal != nil {
		return w.Refusal.err()
	}
	self := Agent{token: token}
	if err := say(ctx, line, &proof{Proof: self.proof("hello", h, w.Nonce)}); err != nil {
		return err
	}
	var d done
	if err := hear(ctx, line, &d); err != nil {
		return err
	}
	return d.Refusal.err()
}
