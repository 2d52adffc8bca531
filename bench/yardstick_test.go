package bench

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// heavy returns a Spec with enough bytes for yardsticks, 150 messages of 100,001 bytes, and three
// lanes.
func heavy() Spec {
	s := small(100_001, true).withDefaults()
	s.OneWay, s.Lanes = 150, 3
	return s
}

// on returns a Result of a pipe over that transport whose one-way tensors took that route.
func on(transport, route string) *Result { return &Result{Transport: transport, OneWayRoute: route} }

// onLanes returns a Result of a pipe over that transport whose one-way tensors took that route,
// with that number of connections.
func onLanes(transport, route string, lanes int) *Result {
	r := on(transport, route)
	r.Connections = lanes
	return r
}

func TestConnectionsOfTCP(t *testing.T) {
	for _, c := range []struct {
		transport, route string
		want             int
	}{
		{"uv", "basic", 1}, {"uv", "basic,inline", 1}, {"uv", Bulk, 1}, {"uv", Inline, 1},
		{"uv", "mpt_uv", 3}, {"uv", "mpt_uv,inline", 3}, {"shm", "mpt_uv", 3},
		{"shm", "basic", 0}, {"shm", Bulk, 0}, {"shm", Inline, 0}, {"uv", "cma", 0}, {"uv", "", 0},
	} {
		r := onLanes(c.transport, c.route, 3)
		r.TripRoute = "mpt_uv"
		require.Equal(t, c.want, connections(r), "%+v", c)
	}
}

func requireYardstick(t *testing.T, s Spec, r *Result) {
	t.Helper()
	require.NotNil(t, r)
	require.Positive(t, r.GBps)
	require.InDelta(t, r.MessagesPerSecond*float64(s.Size)/1e9, r.GBps, r.GBps/1e6)
	require.Equal(t, []int{s.Size, s.OneWay}, []int{r.SizeBytes, r.Messages})
	require.Equal(t, s.Buffers, r.Buffers)
}

func TestMemcpy(t *testing.T) {
	for _, buffers := range AllBuffers() {
		s := heavy()
		s.Buffers = buffers
		r, err := Memcpy{}.Measure(t.Context(), s, on("shm", "cma"))
		require.NoError(t, err)
		requireYardstick(t, s, r)
		require.Equal(t, []any{"memcpy", 1, 0}, []any{r.Subject, r.Processes, r.Connections})
	}
}

func TestTCP(t *testing.T) {
	for _, c := range []struct {
		transport, route string
		connections      int
	}{{"uv", "basic", 1}, {"uv", Inline, 1}, {"uv", "mpt_uv", 3}, {"shm", "mpt_uv", 3}} {
		s := heavy()
		r, err := TCP{child(t)}.Measure(t.Context(), s, onLanes(c.transport, c.route, 3))
		require.NoError(t, err)
		requireYardstick(t, s, r)
		require.Equal(t, []any{"tcp", 2, c.connections}, []any{r.Subject, r.Processes, r.Connections})
	}
}

// TestTCPCarriesTheBytes tests that the receiving end of the yardstick TCP has the bytes that were
// sent, in the part of each message that each connection carries.
func TestTCPCarriesTheBytes(t *testing.T) {
	s := heavy()
	s.OneWay = 7
	a, err := newConnGroup(s)
	require.NoError(t, err)
	defer a.close()
	g, err := newConnGroup(s)
	require.NoError(t, err)
	defer g.close()
	for range 3 {
		dialed, accepted := connectedTCP(t)
		a.add(dialed)
		g.add(accepted)
	}
	for k, c := range a.conns {
		_, err := c.Write([]byte{byte(k)})
		require.NoError(t, err)
	}
	reading := make(chan error, 1)
	go func() { reading <- g.each(g.read) }()
	_, _, err = a.sendAll()
	require.NoError(t, err)
	require.NoError(t, <-reading)
	require.NoError(t, g.memory.check(7, 1), "the batch that counts")
}

// TestYardsticksThatDoNotApply tests that Measure of a yardstick returns nil, nil for messages that
// are too small or none, and that of TCP also if no tensor was sent over TCP.
func TestYardsticksThatDoNotApply(t *testing.T) {
	for _, y := range Yardsticks(shell("exit 1")) {
		for _, spoil := range []func(*Spec){
			func(s *Spec) { s.Size = yardstickSize - 1 },
			func(s *Spec) { s.OneWay = 0 },
		} {
			s := heavy()
			spoil(&s)
			r, err := y.Measure(t.Context(), s, on("uv", "basic"))
			require.NoError(t, err)
			require.Nil(t, r)
		}
	}
	for _, r := range []*Result{on("shm", "basic"), on("uv", "cma"), on("uv", "xth"), on("shm", "mpt_uv")} {
		r, err := TCP{shell("exit 1")}.Measure(t.Context(), heavy(), r)
		require.NoError(t, err)
		require.Nil(t, r, "no tensor is sent over TCP")
	}
}

func TestYardsticksFail(t *testing.T) {
	_, err := TCP{shell("echo no sockets >&2; exit 1")}.Measure(t.Context(), heavy(), on("uv", "basic"))
	require.EqualError(t, err, "process bench tcp server: exit status 1: no sockets")

	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	for _, y := range []Yardstick{Memcpy{}, TCP{child(t)}} {
		_, err := y.Measure(ctx, heavy(), on("uv", "basic"))
		require.ErrorIs(t, err, why)
	}
}

func TestBatchSizes(t *testing.T) {
	s := Spec{Size: 64 << 20, Depth: 8}
	for n, want := range map[int][]int{1: {1, 1}, 16: {16, 16}, 17: {16, 16, 1}, 40: {16, 16, 16, 8}} {
		s.OneWay = n
		require.Equal(t, want, s.batchSizes())
	}
}
