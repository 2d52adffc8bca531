package cudaipc

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/onesided"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// nativeEnd returns the end of a channel of ipcEnds.
func nativeEnd(ch channel.Channel) *ipcEnd { return ch.(*onesided.Engine).Protocol.(*ipcEnd) }

// transferAll sends the tensors, with ids that begin at first, before it receives them, and returns both
// errors of each.
func transferAll(t *testing.T, from, to channel.Channel, first uint64, src, dst []device.Buffer) (all []error) {
	t.Helper()
	sent, received := make(chan error, len(src)), make(chan error, len(src))
	for i, b := range src {
		from.Send(first+uint64(i), b, func(err error) { sent <- err })
	}
	for i, b := range dst {
		to.Recv(first+uint64(i), b, func(err error) { received <- err })
	}
	for range src {
		all = append(all, testwait.Finish(t, received), testwait.Finish(t, sent))
	}
	return all
}

// application returns n allocations of the application, valid on s, which the caller frees.
func (f *fixture) application(n, size int, s *Stream) (all []device.Buffer) {
	f.Helper()
	require.NoError(f, s.gpu.enter())
	defer s.gpu.leave()
	for range n {
		p, err := f.Driver().Alloc(size)
		require.NoError(f, err)
		b, err := f.Wrap(p, size, s)
		require.NoError(f, err)
		all = append(all, b)
	}
	return all
}

func (f *fixture) freeAll(g *gpu, all []device.Buffer) {
	f.Helper()
	require.NoError(f, g.enter())
	defer g.leave()
	for _, b := range all {
		require.NoError(f, f.Driver().Free(memory(b).Ptr()))
	}
}

// A peer whose application allocates more and more memory does not end the channel: the receiver maps a
// bounded number of its allocations, and tensors in others are copied once more.
func TestManyAllocationsOfTheApplication(t *testing.T) {
	const direct, allocations, size = 3, 8, 1000
	f := newFixture(t, Options{})
	from, to := f.ipcEnds(t)
	nativeEnd(from).maxWrapped = direct
	s := f.stream(f.zero)
	src := f.application(allocations, size, s)
	var dst []device.Buffer
	for range src {
		dst = append(dst, f.alloc(size, f.stream(f.zero)))
	}
	opened := f.simulator().Calls("cuIpcOpenMemHandle_v2")
	for round := range 3 {
		for i, b := range src {
			f.write(b, pattern(round*allocations+i, size))
		}
		for _, err := range transferAll(t, from, to, uint64(round*allocations), src, dst) {
			require.NoError(t, err)
		}
		for i, b := range dst {
			require.Equal(t, pattern(round*allocations+i, size), f.read(b))
		}
	}
	require.Equal(t, direct+1, f.simulator().Calls("cuIpcOpenMemHandle_v2")-opened, "one has all copies")
	require.Equal(t, []string{manyAllocations}, nativeEnd(from).warned)
	require.NoError(t, to.Close(nil)) // unmaps them
	f.gpus[0].background.Wait()
	f.freeAll(f.gpus[0], src)
}

// A peer that describes more allocations than an honest one has ends the channel.
func TestTooManyImportedAllocations(t *testing.T) {
	f := newFixture(t, Options{})
	from, to := f.ipcEnds(t)
	nativeEnd(to).imports.maxMemory = 1
	src := []device.Buffer{f.alloc(smallBlock, f.stream(f.zero)), f.alloc(sharedBlock, f.stream(f.zero))}
	dst := []device.Buffer{f.alloc(smallBlock, f.stream(f.zero)), f.alloc(sharedBlock, f.stream(f.zero))}
	require.Equal(t, []error{nil, nil}, transferAll(t, from, to, 0, src[:1], dst[:1]))
	received := make(chan error, 1)
	to.Recv(1, dst[1], func(err error) { received <- err })
	from.Send(1, src[1], func(error) {})
	err := testwait.Finish(t, received)
	require.ErrorIs(t, err, channel.ErrProtocol)
	require.ErrorContains(t, err, "more than 1 allocations")
}

// The events of tensors in flight, and those of tensors that were given up, do not end the channel: the
// receiver closes the event that it has opened first, without a wait, and opens it again.
func TestManyImportedEvents(t *testing.T) {
	const most, tensors, size = 2, 7, 1000
	f := newFixture(t, Options{})
	from, to := f.ipcEnds(t)
	nativeEnd(to).imports.maxEvents = most
	f.set("CUSIM_DELAY_US", late)
	var src, dst []device.Buffer
	for range tensors {
		src, dst = append(src, f.alloc(size, f.stream(f.zero))), append(dst, f.alloc(size, f.stream(f.second())))
	}
	for i := range 3 * most {
		from.Send(uint64(1000+i), src[0], func(error) {})
		from.Abort(uint64(1000+i), nil) // its event is not used again
	}
	opened, destroyed := f.simulator().Calls("cuIpcOpenEventHandle"), f.simulator().Calls("cuEventDestroy_v2")
	for round := range 2 {
		for i, b := range src {
			f.write(b, pattern(round*tensors+i, size))
		}
		blocking := f.blocking()
		for _, err := range transferAll(t, from, to, uint64(round*tensors), src, dst) {
			require.NoError(t, err)
		}
		require.Equal(t, blocking, f.blocking())
		for i, b := range dst {
			require.Equal(t, pattern(round*tensors+i, size), f.read(b))
		}
	}
	opened = f.simulator().Calls("cuIpcOpenEventHandle") - opened
	require.GreaterOrEqual(t, opened, tensors)
	require.Equal(t, opened-most, f.simulator().Calls("cuEventDestroy_v2")-destroyed)
	require.Len(t, nativeEnd(to).imports.events, most)
}

// Memory of the peer is unmapped, and memory of the Kind is freed, after the work that uses it, although the
// driver does not promise that these calls wait.
func TestReleaseAfterTheWork(t *testing.T) {
	const size = sharedBlock
	for name, release := range map[string]struct {
		call  string // that releases the memory
		begin func(t *testing.T, f *fixture, s *Stream) (end func())
	}{
		"Close of a channel": {"cuIpcCloseMemHandle", func(t *testing.T, f *fixture, s *Stream) func() {
			from, to := f.ipcEnds(t)
			src := f.alloc(size, f.stream(f.zero))
			f.write(src, pattern(1, size)[:size])
			require.Equal(t, []error{nil, nil}, transferAll(t, from, to, 0, []device.Buffer{src}, []device.Buffer{f.alloc(size, s)}))
			require.NoError(t, to.Close(nil))
			return f.gpus[0].background.Wait
		}},
		"Trim": {"cuMemFree_v2", func(t *testing.T, f *fixture, s *Stream) func() {
			b := f.alloc(size, s)
			f.write(b, pattern(1, size)[:size])
			memory(b).release()
			trimmed := testwait.Start(func() error { return f.Trim(f.zero) })
			return func() { require.NoError(t, testwait.Finish(t, trimmed)) }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, Options{})
			f.set("CUSIM_NO_FREE_WAIT", "1")
			t.Cleanup(func() { f.set("CUSIM_NO_FREE_WAIT", "") })
			s := f.stream(f.zero)
			free := f.hold(s)
			waits, releases := f.simulator().Calls("cuStreamSynchronize"), f.simulator().Calls(release.call)
			end := release.begin(t, f, s)
			for f.simulator().Calls("cuStreamSynchronize") == waits && f.simulator().Calls(release.call) == releases {
				require.NoError(t, t.Context().Err())
				runtime.Gosched()
			}
			require.Equal(t, releases, f.simulator().Calls(release.call))
			free()
			end()
			require.Equal(t, releases+1, f.simulator().Calls(release.call))
		})
	}
}

// CheckFree reports memory of the application that a living process may have mapped.
func TestCheckFree(t *testing.T) {
	f := newFixture(t, Options{})
	g, s := f.gpus[0], f.stream(f.zero)
	all := f.application(2, 1000, s)
	sent, kept := memory(all[0]).Ptr(), memory(all[1]).Ptr()
	require.NoError(t, f.CheckFree(sent))
	from, to := f.ipcEnds(t)
	nativeEnd(from).peer = os.Getppid()
	dst := f.alloc(100, s)
	require.Equal(t, []error{nil, nil}, transferAll(t, from, to, 0, []device.Buffer{all[0].Slice(10, 100)}, []device.Buffer{dst}))
	require.ErrorIs(t, f.CheckFree(sent), ErrMapped)
	require.ErrorIs(t, f.CheckFree(sent+999), ErrMapped)
	require.NoError(t, f.CheckFree(kept))
	const attribute = "cuPointerGetAttribute"
	before := f.calls(attribute)
	require.ErrorIs(t, f.CheckFree(sent), ErrMapped)
	f.set("CUSIM_FAIL", fmt.Sprintf("%s:%d:%d", attribute, faultResult, 2*f.calls(attribute)-before))
	require.ErrorIs(t, f.CheckFree(sent), faultResult)
	f.set("CUSIM_FAIL", "")
	require.ErrorIs(t, f.CheckFree(0), device.ErrMemory)
	require.ErrorIs(t, f.CheckFree(driver.HostPtr(make([]byte, 1))), device.ErrMemory)
	require.NoError(t, to.Close(nil))
	g.background.Wait()
	require.ErrorIs(t, f.CheckFree(sent), ErrMapped, "this end cannot know that the peer has unmapped it")
	f.freeAll(g, all)

	// The Kind keeps a bounded number of entries for memory that was freed.
	for range 20 {
		few := f.application(fewWrapped/4, 1, s)
		require.NoError(t, g.enter())
		for _, b := range few {
			base, h, err := g.wrappedHandle(memory(b).Ptr())
			require.NoError(t, err)
			g.addImporter(base, h, os.Getppid())
			require.ErrorIs(t, f.CheckFree(base), ErrMapped)
		}
		g.leave()
		f.freeAll(g, few)
	}
	require.LessOrEqual(t, len(g.wrapped), fewWrapped)
}
