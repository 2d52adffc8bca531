package cudaipc

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Allocations query few events, however much memory waits for the work of streams, and each event of
// finished work once.
func TestPendingMemoryTakesFewQueries(t *testing.T) {
	const streams, blocks, allocations = 8, 400, 50
	for name, pool := range map[string]struct {
		leave func(f *fixture, s, user *Stream) // frees memory that work on user has used
		take  func(f *fixture, s *Stream)       // takes memory and frees it at once
		left  func(g *gpu) int                  // streams with pending memory
	}{
		"device": {
			func(f *fixture, s, user *Stream) {
				b := f.alloc(blockAlign, s)
				require.NoError(f, f.RecordStream(b, user))
				memory(b).release()
			},
			func(f *fixture, s *Stream) { memory(f.alloc(blockAlign, s)).release() },
			func(g *gpu) int { return g.memory.pending.all() },
		},
		"page-locked": {
			func(f *fixture, _, user *Stream) { f.takePinned(user).put() },
			func(f *fixture, s *Stream) { f.takePinned(s).putIdle() },
			func(g *gpu) int { return g.pinned.pending.all() },
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, Options{})
			g, s := f.gpus[0], f.stream(f.zero)
			require.NoError(t, g.enter())
			defer g.leave()
			var users []*Stream
			for range streams {
				user := f.stream(f.zero)
				f.hold(user)
				require.NoError(t, f.Sleep(user, 1))
				users = append(users, user)
			}
			queries := func() int { return f.simulator().Calls("cuEventQuery") }
			before := queries()
			for i := range blocks {
				pool.leave(f, s, users[i%streams])
			}
			require.LessOrEqual(t, queries()-before, blocks*(polledStreams+streams), "none is free")
			require.Equal(t, streams, pool.left(g))
			pool.take(f, s) // is free after it
			before = queries()
			for range allocations {
				pool.take(f, s)
			}
			require.Equal(t, allocations*polledStreams, queries()-before)

			f.control.ReleaseAll()
			for _, user := range users {
				f.synchronize(user)
			}
			before = queries()
			for range streams / polledStreams {
				pool.take(f, s)
			}
			require.Equal(t, blocks, queries()-before)
			require.Zero(t, pool.left(g))
		})
	}
}

// takenPinned is page-locked memory that the test has taken.
type takenPinned struct {
	pool   *pinnedPool
	block  *pinnedBlock
	stream *Stream
}

func (f *fixture) takePinned(s *Stream) takenPinned {
	f.Helper()
	b, err := s.gpu.pinned.take(1)
	require.NoError(f, err)
	return takenPinned{&s.gpu.pinned, b, s}
}

func (p takenPinned) put()     { p.pool.put(p.block, p.stream.handle) }
func (p takenPinned) putIdle() { p.pool.putIdle(p.block) }

// Memory whose streams have work left becomes free when the work of all of them has ended, in any order.
func TestMemoryWaitsForAllStreams(t *testing.T) {
	f := newFixture(t, Options{})
	s, first, second := f.stream(f.zero), f.stream(f.zero), f.stream(f.zero)
	var release []func()
	for _, user := range []*Stream{first, second} {
		release = append(release, f.hold(user))
		require.NoError(t, f.Sleep(user, 1))
	}
	b := f.alloc(100, s)
	for _, user := range []*Stream{first, second} {
		require.NoError(t, f.RecordStream(b, user))
	}
	memory(b).release()
	for i, user := range []*Stream{second, first} {
		release[1-i]()
		f.synchronize(user)
		memory(f.alloc(100, s)).release()
		require.Equal(t, []int{blockAlign, 0}[i], f.stats(f.zero).Pending)
	}
	require.Zero(t, f.gpus[0].memory.pending.all())
}
