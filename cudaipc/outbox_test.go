package cudaipc

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// endedProcess returns the id of a process that has ended.
func endedProcess(t *testing.T) int {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	require.NoError(t, cmd.Run())
	return cmd.Process.Pid
}

// stagedEnds returns the ends of a channel in the compatible dialect. The first one takes the other for an
// end of the process peer.
func (f *fixture) stagedEnds(t *testing.T, peer int) (from, to channel.Channel) {
	t.Helper()
	near, far := connectedConns(t, 2)
	open := func(conns []transport.Conn, process int) channel.Channel {
		e := newStagedEnd(f.Kind, channel.Link{
			Conns: conns, Peer: "peer", Broken: func(error) {}, Logger: slog.New(slog.DiscardHandler),
		}, process)
		t.Cleanup(func() { _ = e.Close(nil) })
		return e
	}
	return open(near, peer), open(far, os.Getpid())
}

// A copy to a slot that is still enqueued when the process of the peer has died does not overwrite the bytes
// of the next user of the outbox.
func TestOutboxOfADeadPeer(t *testing.T) {
	f := newFixture(t, Options{})
	f.set("CUSIM_OWN_HANDLES", "1")
	f.Cleanup(func() { f.set("CUSIM_OWN_HANDLES", "") })
	const size = 1000
	own, next, at := f.stream(f.zero), f.stream(f.zero), f.stream(f.zero)
	first, second, dst := f.alloc(size, own), f.alloc(size, next), f.alloc(size, at)
	f.write(first, pattern(1, size))
	f.write(second, pattern(2, size))
	f.synchronize(own)
	f.synchronize(next)

	from, to := f.stagedEnds(t, endedProcess(t))
	release := f.hold(own)
	sent, received := make(chan error, 2), make(chan error, 2)
	to.Recv(0, f.alloc(size, f.stream(f.zero)), func(err error) { received <- err })
	from.Send(0, first, func(err error) { sent <- err })
	require.NoError(t, testwait.Finish(t, received))
	require.NoError(t, testwait.Finish(t, sent))
	require.NoError(t, to.Close(nil))
	require.NoError(t, from.Close(nil))

	from, to = f.stagedEnds(t, os.Getpid())
	receive := f.hold(at)
	to.Recv(0, dst, func(err error) { received <- err })
	from.Send(0, second, func(err error) { sent <- err })
	require.NoError(t, testwait.Finish(t, received))
	require.NoError(t, testwait.Finish(t, sent))
	boxes := len(f.gpus[0].outboxes)
	require.Equal(t, 1, boxes, "the second channel has another outbox")
	release()
	f.synchronize(own)
	receive()
	require.Equal(t, pattern(2, size), f.read(dst))
}

// The events of an outbox that could not be made are used for the next one, and its memory is freed.
func TestOutboxThatCannotBeMade(t *testing.T) {
	f := newFixture(t, Options{})
	const create, export = "cuEventCreate", "cuIpcGetEventHandle"
	end := &stagedEnd{peer: endedProcess(t)}
	_, err := f.gpus[0].takeOutbox(end)
	require.NoError(t, err)
	created, allocated, freed := f.calls(create), f.calls("cuMemAlloc_v2"), f.calls("cuMemFree_v2")
	f.set("CUSIM_FAIL", fmt.Sprintf("%s:%d:%d", export, faultResult, f.calls(export)+slotCount))
	_, err = f.gpus[0].takeOutbox(end)
	f.set("CUSIM_FAIL", "")
	require.ErrorIs(t, err, faultResult)
	require.Equal(t, freed+1, f.calls("cuMemFree_v2"))
	require.Equal(t, created+slotCount, f.calls(create))

	_, err = f.gpus[0].takeOutbox(end)
	require.NoError(t, err)
	require.Equal(t, created+slotCount+1, f.calls(create), "an event is made for the one that failed")
	require.Equal(t, allocated+2, f.calls("cuMemAlloc_v2"))
}
