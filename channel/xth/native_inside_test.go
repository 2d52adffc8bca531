package xth

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/onesided"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// The table of this process retains no descriptions of tensors that were copied, or aborted by
// either end at any time, and no routes after both ends have closed.
func TestNativeKeepsNothing(t *testing.T) {
	near, far := connect(t, connections)
	ignore := func(error) {}
	from, to := openAs(t, true, ignore, near...), openAs(t, true, ignore, far...)
	require.Equal(t, 2, openRoutes(near[0]), "one for each direction")
	buf := func() device.Buffer { return device.Bytes(make([]byte, 100)) }
	done := make(chan error, 8)
	wait := func(err error) { done <- err }
	for id := uint64(0); id < 100; id += 4 {
		from.Send(id, buf(), wait) // copied
		to.Recv(id, buf(), wait)
		from.Send(id+1, buf(), wait) // has no Recv
		from.Abort(id+1, io.EOF)
		to.Abort(id+2, io.EOF) // before it is announced
		from.Send(id+2, buf(), wait)
		from.Abort(id+2, io.EOF)
		to.Recv(id+3, buf(), wait) // has no Send
		to.Abort(id+3, io.EOF)
		for range 5 {
			<-done
		}
	}
	from.Send(100, buf(), wait) // all earlier announcements have been handled
	to.Recv(100, buf(), wait)
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	table.mu.Lock()
	here := table.open[endpoints{near[0].LocalAddr(), near[0].RemoteAddr()}]
	table.mu.Unlock()
	require.Empty(t, here.descriptions)
	require.NoError(t, from.Close(nil))
	require.NoError(t, to.Close(nil))
	require.Zero(t, openRoutes(near[0]))
}

// When the sender revokes a tensor that is being copied, the copy stops after one chunk, and the
// Recv does not complete until it is aborted.
func TestNativeCopyingEndsWithinAChunk(t *testing.T) {
	near, far := connect(t, connections)
	ch := openAs(t, true, func(error) {}, near...)
	src, dst := bytes.Repeat([]byte{1}, 3*chunkSize), make([]byte, 3*chunkSize)
	o := newDescription()
	o.reset(device.Bytes(src), nil)
	o.stop = true
	table.joinSender(endpoints{from: far[0].LocalAddr(), to: far[0].RemoteAddr()}).add(o)
	result := make(chan error, 1)
	ch.Recv(7, device.Bytes(dst), func(err error) { result <- err })
	announced := (&native{}).Append(nil, onesided.Frame{Kind: onesided.Describe, ID: 7, Source: o})
	require.NoError(t, far[0].WriteFrames(transport.Frame{announced}))
	o.mu.Lock()
	for o.phase != finished {
		o.copyEnded.Wait()
	}
	o.mu.Unlock()
	require.Equal(t, src[:chunkSize], dst[:chunkSize], "a chunk was under way")
	require.Equal(t, make([]byte, 2*chunkSize), dst[chunkSize:])
	require.ErrorIs(t, o.Copied(), channel.ErrProtocol)
	require.Empty(t, result)
	ch.Abort(7, io.EOF)
	require.Equal(t, io.EOF, <-result)
	require.NoError(t, ch.Close(nil))
	require.Empty(t, result)
}

// hooked is a native end that calls pulling before each copy, on the goroutine that copies.
type hooked struct {
	*native
	pulling func(*onesided.Recv)
}

func (p hooked) Pull(r *onesided.Recv) error {
	p.pulling(r)
	return p.native.Pull(r)
}

// An Abort, or the end of the channel, stops a copy after one chunk, and the Recv then completes
// with the cause. If that chunk was the last one, the Recv succeeds, and after an Abort the sender
// gets a completion.
func TestNativeReceiverStopsCopying(t *testing.T) {
	for name, stop := range map[string]func(e *onesided.Engine, r *onesided.Recv) error{
		"receiver aborts": func(e *onesided.Engine, r *onesided.Recv) error {
			e.Abort(r.ID, io.ErrNoProgress)
			return nil
		},
		"receiver closes": func(e *onesided.Engine, _ *onesided.Recv) error { return e.Close(io.ErrNoProgress) },
	} {
		for _, chunks := range []int{1, 3} {
			t.Run(fmt.Sprint(name, "/", chunks), func(t *testing.T) {
				near, far := connect(t, connections)
				link := channel.Link{Native: true, Conns: near, Peer: "peer", Broken: func(error) {}}
				here, there := near[0].LocalAddr(), near[0].RemoteAddr()
				running, stopped := make(chan *onesided.Recv, 2), make(chan struct{})
				to := onesided.New(link, onesided.Config{
					Protocol: hooked{
						native: &native{
							here:  table.joinSender(endpoints{from: here, to: there}),
							there: table.joinReceiver(endpoints{from: there, to: here}),
						},
						pulling: func(r *onesided.Recv) { running <- r; <-stopped },
					},
					MaxFrame:  announcementSize,
					WrapError: func(err error) error { return err },
				})
				to.Run()
				defer to.Close(nil)

				n := chunks*chunkSize - 1 // after a short chunk nothing stops the copy
				src, dst := bytes.Repeat([]byte{1}, n), make([]byte, n)
				o := newDescription()
				o.reset(device.Bytes(src), nil)
				sender := table.joinSender(endpoints{from: there, to: here})
				defer table.leaveSender(sender)
				sender.add(o)
				received := make(chan error, 2)
				to.Recv(7, device.Bytes(dst), func(err error) { received <- err })
				announced := (&native{}).Append(nil, onesided.Frame{Kind: onesided.Describe, ID: 7, Source: o})
				require.NoError(t, far[0].WriteFrames(transport.Frame{announced}))
				r := <-running
				ended := make(chan error, 1)
				go func() { ended <- stop(to, r) }()
				for r.Stopped() == nil {
					runtime.Gosched()
				}
				require.Empty(t, received, "the memory is in use")
				close(stopped)
				err := <-received
				require.NoError(t, <-ended)
				whole := min(n, chunkSize)
				require.Equal(t, src[:whole], dst[:whole], "a chunk was under way")
				require.Equal(t, make([]byte, n-whole), dst[whole:])
				if chunks == 1 {
					require.NoError(t, err)
					require.NoError(t, o.Copied())
				} else {
					require.Equal(t, io.ErrNoProgress, err)
					require.ErrorIs(t, o.Copied(), channel.ErrProtocol)
				}
				if chunks == 1 && name == "receiver aborts" {
					size, err := far[1].NextFrame()
					require.NoError(t, err)
					require.EqualValues(t, completionSize, size, "the sender is informed")
				}
				require.NoError(t, to.Close(nil))
				require.Empty(t, received)
				require.Empty(t, running)
			})
		}
	}
}
