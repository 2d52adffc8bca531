package agent

import (
	"context"
	"fmt"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/roster"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/rawpeer"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// fixedCost is the memory of a pipe without any data, for both ends, which are in this process.
const fixedCost = 128 << 10

// live collects garbage and returns the bytes in use on the heap and in stacks.
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

// Many peers that do not know the token each send most of a large message and stop. The memory that
// they hold stays near Limits.UnadmittedBytes, and as many members that connect meanwhile, up to 100
// at a time, are all admitted.
func TestMembersAmongUnadmittedPeers(t *testing.T) {
	short.Skip(t, "2000 peers")
	const limit = 64 << 20 // the default
	silentPeers, members := race.Pick(1000, 60), race.Pick(1000, 200)
	var group store.Store
	a, url := joinSingle(t, func(c *Config) {
		group = c.Store
		c.WorldSize, c.Token, c.NewContext, c.HandshakeTimeout = 0, []byte("secret"), plainTCP, time.Minute
	})
	hellos := make([]wire.Hello, members)
	for i := range hellos {
		m := roster.Member{Name: fmt.Sprintf("member%d", i), Rank: 1 + i, Incarnation: roster.Incarnation{1, byte(i), byte(i >> 8)}, URLs: []string{url},
			MinVersion: wire.Version, MaxVersion: wire.Version}
		_, err := roster.JoinDynamic(t.Context(), group, "default", m)
		require.NoError(t, err)
		hellos[i] = wire.Hello{Oldest: wire.Version, Newest: wire.Version, Group: "default", To: a.identity(),
			From: wire.Identity{Name: m.Name, Rank: m.Rank, Incarnation: m.Incarnation}, CallBytes: 1 << 20}
	}

	empty := live()
	crowd := make([]*rawpeer.Peer, silentPeers)
	for i := range crowd {
		var err error
		crowd[i], err = rawpeer.Dial(url)
		require.NoError(t, err)
		t.Cleanup(crowd[i].Close)
	}
	idle := live()
	require.Less(t, (idle-empty)/silentPeers, fixedCost)

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
		at := make(chan struct{}, 100) // the members whose memory is not admitted yet need a small part of the limit
		for i := range members {
			crowding.Go(func() {
				at <- struct{}{}
				let[i] = dialAsMember(t.Context(), knocking, url, &hellos[i], a.token)
				<-at
			})
		}
		crowding.Wait()
	}()
	// Objects that are allocated while the garbage collector marks count as live, so that single
	// readings are too high. Bytes that peers hold are in three readings in a row.
	most, recent := 0, [3]int{}
	for n, over := 0, false; !over; n++ {
		select {
		case <-done:
			over = true
		default:
		}
		recent[n%len(recent)] = live() - idle
		most = max(most, slices.Min(recent[:]))
	}
	s := a.pipes.Stats()
	t.Logf("%d silent peers and %d members, %d KiB each: %d MiB held, %d disconnected", silentPeers, members, (idle-empty)/silentPeers>>10, most>>20, s.PeersEvicted)
	for _, err := range let {
		require.NoError(t, err)
	}
	// While a buffer grows, the old and the new one exist.
	require.Less(t, most, 2*limit+members*fixedCost)
	require.Positive(t, most, "at least three readings")
	require.LessOrEqual(t, s.BytesUnadmitted, limit)
	require.Positive(t, s.PeersEvicted)
}

// dialAsMember opens a pipe to url and performs the handshake as the member in h.From, with token.
// It returns nil if the pipe is accepted, and otherwise the reason of the rejection or the error of
// the pipe. The pipe stays open until c is closed.
func dialAsMember(ctx context.Context, c *pipe.Context, url string, h *wire.Hello, token []byte) error {
	pp, err := c.Dial(ctx, url)
	if err != nil {
		return err
	}
	if err := sendValue(ctx, pp, h); err != nil {
		return err
	}
	var w wire.Answer
	if err := receiveValue(ctx, pp, &w); err != nil {
		return err
	}
	if w.Refusal != nil {
		return refusalError(w.Refusal)
	}
	if err := sendValue(ctx, pp, &wire.Proof{Proof: h.Prove(token, wire.Dialing, w.Nonce)}); err != nil {
		return err
	}
	var d wire.Done
	if err := receiveValue(ctx, pp, &d); err != nil {
		return err
	}
	return refusalError(d.Refusal)
}
