package bench

import (
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/race"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
)

// BenchmarkIdlePipes opens 1000 pipes to a second process and looks at both for
// 10 seconds: pipes that never carried anything, and pipes that carried a tensor
// of 1 MiB each.
func BenchmarkIdlePipes(b *testing.B) {
	for _, path := range pathSpecs() {
		for _, size := range []int{0, 1 << 20} {
			b.Run(fmt.Sprintf("%s/carried=%d", label(path), size), func(b *testing.B) {
				s := path
				s.Size = size
				idlePipes(b, s)
			})
		}
	}
}

func idlePipes(b *testing.B, s Spec) {
	for b.Loop() {
		cost, err := Go{Child: child(b)}.Idle(b.Context(), s, 1000, 10*time.Second)
		require.NoError(b, err)
		for name, end := range map[string]EndCost{"client": cost.Client, "server": cost.Server} {
			b.ReportMetric(100*end.Core, name+"-core-%")
			b.ReportMetric(float64(end.BytesPerPipe)/1024, name+"-KiB/pipe")
			b.ReportMetric(end.DescriptorsPerPipe, name+"-fds/pipe")
		}
	}
	b.ReportMetric(0, "ns/op")
}

// hundred is how many pipes over shared memory a process is to bear, a quarter of
// that under the race detector.
var hundred = race.Pick(100, 25)

// shared is the path over shared memory, on which each pipe has carried a message
// of that size.
func shared(dialect string, size int) Spec {
	return Spec{Transports: []string{"shm"}, Channels: []string{"basic"}, Dialect: dialect, Size: size}
}

// idleShared are pipes that have carried nothing, and those that have carried a tensor:
// within its message or by bulk, for which rings grow, of which the memory is given back
// when nothing was sent for 4 to 8 s.
var idleShared = []struct {
	dialect             string
	size                int
	shared, descriptors int           // most MiB of a hundred pipes, descriptors of each
	idle                time.Duration // before they are looked at
}{
	{pipe.DialectNative, 0, 20, 1, 0},
	{pipe.DialectNative, 200_000, 100, 1, 0},
	{pipe.DialectNative, 1_500_000, 100, 1, 0},
	{pipe.DialectNative, 3_000_000, 150, 1, 0},
	{pipe.DialectNative, 16 << 20, 25, 1, 9 * time.Second},
	{pipe.DialectCompatible, 0, 1700, 4, 0},
	{pipe.DialectCompatible, 200_000, 1700, 4, 0},
	{pipe.DialectCompatible, 1_500_000, 1700, 4, 0},
	{pipe.DialectCompatible, 16 << 20, 1700, 4, 0},
}

// BenchmarkIdleShared opens 100 pipes over shared memory to a second process and
// looks at both for 10 seconds. Its figures are those of whole processes.
func BenchmarkIdleShared(b *testing.B) {
	needSharedMemory(b)
	for _, c := range idleShared {
		s := shared(c.dialect, c.size)
		b.Run(fmt.Sprintf("%s/carried=%d", label(s), c.size), func(b *testing.B) {
			for b.Loop() {
				cost, err := Go{Child: child(b)}.Idle(b.Context(), s, hundred-1, 10*time.Second)
				require.NoError(b, err)
				reportEnd(b, "client", cost.Client)
				reportEnd(b, "server", cost.Server)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func needSharedMemory(t testing.TB) {
	t.Helper()
	if err := shm.New().Viable(); err != nil {
		t.Skip("shared memory does not work here: ", err)
	}
}

func reportEnd(b *testing.B, name string, end EndCost) {
	const mib = 1 << 20
	b.ReportMetric(100*end.Core, name+"-core-%")
	b.ReportMetric(float64(end.Resident)/mib, name+"-resident-MiB")
	b.ReportMetric(float64(end.Mapped)/mib, name+"-mapped-MiB")
	b.ReportMetric(float64(end.Shared)/mib, name+"-shared-MiB")
	b.ReportMetric(float64(end.Descriptors), name+"-fds")
	b.ReportMetric(float64(end.Threads), name+"-threads")
}

// A hundred pipes over shared memory have a process hold less than 300 MiB and 5
// threads more. What it shares with others is a figure of its own, part of which is
// among what it holds. TensorPipe's pipes have four connections.
func TestIdleShared(t *testing.T) {
	needSharedMemory(t)
	for _, c := range idleShared {
		if c.size > mostCarried {
			continue
		}
		cost := settled(t, shared(c.dialect, c.size), max(c.idle, time.Millisecond), c.shared)
		for who, end := range map[string]EndCost{"client": cost.Client, "server": cost.Server} {
			what := fmt.Sprintf("%s %s after %d bytes: %.1f MiB per pipe", c.dialect, who, c.size, float64(end.BytesPerPipe)/(1<<20))
			t.Logf("%s, %d MiB resident, %d MiB mapped, %d MiB shared, %d descriptors, %d more threads",
				what, end.Resident>>20, end.Mapped>>20, end.Shared>>20, end.Descriptors, end.Threads)
			require.Positive(t, end.Resident)
			require.Less(t, end.Resident>>20, mostResident, what)
			require.Positive(t, end.Mapped)
			require.LessOrEqual(t, end.Shared, end.Mapped, what)
			require.Less(t, end.Shared>>20, c.shared, what)
			require.Equal(t, float64(c.descriptors), end.DescriptorsPerPipe, what)
			require.Less(t, end.Descriptors, c.descriptors*hundred+50, what)
			require.LessOrEqual(t, end.Threads, mostThreads, what)
		}
	}
}

// Native pipes that have carried small messages only, both ways and more of them than a
// ring has bytes for, take at most 256 KiB each, of both processes together: shared and
// other memory, and page tables.
func TestIdleSmallMessages(t *testing.T) {
	needSharedMemory(t)
	if race.Enabled {
		t.Skip("the race detector has memory of its own, which is most of it")
	}
	const most, pipes, trips = 256 << 10, 100, 10_000
	s := shared(pipe.DialectNative, 8)
	s.Channels, s.RoundTrips = nil, trips // the channels of the default profile
	cost, err := Go{Child: child(t)}.Idle(t.Context(), s, pipes, time.Millisecond)
	require.NoError(t, err)
	client, server := cost.Client.PagesPerPipe, cost.Server.PagesPerPipe
	t.Logf("%d KiB of each pipe at the client, %d KiB at the server", client>>10, server>>10)
	require.Positive(t, client)
	require.Positive(t, server)
	require.LessOrEqual(t, client+server, most)
}

const mostThreads = 4

// settled is the cost of idle pipes. On a busy machine the runtime starts a thread where a
// system call takes long, and memory is given back late: it is the first of up to three at
// which both ends have few threads more, and less than so many MiB shared.
func settled(t *testing.T, s Spec, idle time.Duration, mostShared int) *IdleCost {
	t.Helper()
	for tries := 2; ; tries-- {
		cost, err := Go{Child: child(t)}.Idle(t.Context(), s, hundred-1, idle)
		require.NoError(t, err)
		threads, held := max(cost.Client.Threads, cost.Server.Threads), max(cost.Client.Shared, cost.Server.Shared)
		if tries == 0 || threads <= mostThreads && held>>20 < mostShared {
			return cost
		}
	}
}

// Two processes with a number of pipes over shared memory on which nothing happens take
// less than a hundredth of a core each. Other programs share the machine: the least of
// three times counts.
func TestIdleSharedSleeps(t *testing.T) {
	needSharedMemory(t)
	most := race.Pick(0.01, 0.03)
	for _, dialect := range []string{pipe.DialectNative, pipe.DialectCompatible} {
		client, server := math.Inf(1), math.Inf(1)
		for i := 0; i < 3 && max(client, server) >= most; i++ {
			cost, err := Go{Child: child(t)}.Idle(t.Context(), shared(dialect, 200_000), 20, 2*time.Second)
			require.NoError(t, err)
			client, server = min(client, cost.Client.Core), min(server, cost.Server.Core)
		}
		t.Logf("%s: %.3f %% of a core at one end, %.3f %% at the other", dialect, 100*client, 100*server)
		require.Less(t, client, most, dialect)
		require.Less(t, server, most, dialect)
	}
}

// A native pipe has one connection, and a second one once it has carried a large
// tensor.
func TestIdle(t *testing.T) {
	for _, c := range []struct{ size, connections int }{{0, 1}, {8, 1}, {200_000, 2}} {
		s := uvBasic(pipe.DialectNative)
		s.Size = c.size
		cost, err := Go{Child: child(t)}.Idle(t.Context(), s, 20, time.Millisecond)
		require.NoError(t, err)
		for _, end := range []EndCost{cost.Client, cost.Server} {
			if runtime.GOOS == "linux" {
				require.Equal(t, float64(c.connections), end.DescriptorsPerPipe, "after %d bytes", c.size)
				require.Less(t, end.BytesPerPipe, 10<<20)
			}
			require.GreaterOrEqual(t, end.Core, 0.0)
		}
	}
}

// BenchmarkIdleBesideCxx has one idle pipe over shared memory to a process of the
// C++ library, which wakes nobody and has to be looked at, for 10 seconds.
func BenchmarkIdleBesideCxx(b *testing.B) {
	requirePeer(b)
	needSharedMemory(b)
	path, err := buildPeer()
	require.NoError(b, err)
	for b.Loop() {
		server, err := startProcess(b.Context(), "tpbench server", Program{Path: path, Args: []string{
			"server", "--listen", "shm://", "--transport", "shm", "--channel", "basic", "--lanes", "16", "--buffers", "malloc",
		}})
		require.NoError(b, err)
		url, err := server.line()
		require.NoError(b, err)
		s := shared(pipe.DialectAuto, 8)
		s.Named = true
		s.RoundTrips = 100
		require.NoError(b, dialed(b, s, url, func(c *client, _ *pipe.Plan) error {
			if _, err := c.measure(); err != nil {
				return err
			}
			const quiet = 10 * time.Second
			before := ownUsage().After
			err := wait(b.Context(), quiet)
			b.ReportMetric(100*(cpuTime()-before).Seconds()/quiet.Seconds(), "client-core-%")
			return err
		}))
		require.NoError(b, server.end())
	}
	b.ReportMetric(0, "ns/op")
}
