package onesided_test

import (
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/internal/onesided"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func newKind(t *testing.T) *delayed.Kind {
	kind := delayed.New("npu", 2)
	t.Cleanup(kind.Close)
	return kind
}

func connect(t *testing.T) (near, far transport.Conn) {
	return channeltest.Over(mem.New(nil), "")(t)
}

// result returns a done function, and a channel that receives the errors with which it is called.
func result() (done func(error), err <-chan error) {
	ch := make(chan error, 2)
	return func(err error) { ch <- err }, ch
}

// A channel whose copies are asynchronous passes the native conformance suite on a device with
// streams, and retains no description.
func TestConformance(t *testing.T) {
	kind := newKind(t)
	f := newShare(kind)
	channeltest.RunNative(t, channeltest.Backend{
		Name:    "share",
		New:     func(*testing.T) channel.Factory { return f },
		Connect: channeltest.Over(mem.New(nil), ""),
		Kinds:   []device.Kind{kind},
		Hold:    func(s device.Stream) func() { return s.(*delayed.Stream).Hold() },
	})
	require.Empty(t, f.all, "memory that is described")
}

// A Send and its Recv complete while their streams are held. Later work on the receiver's stream
// sees the tensor, and later work on the sender's stream does not change the received bytes.
func TestCompletionsDoNotWaitForStreams(t *testing.T) {
	kind := newKind(t)
	near, far := connect(t)
	from, to, _ := open(t, newShare(kind), near, far)
	src, dst := alloc(t, kind, "early"), alloc(t, kind, "-----")
	releaseSrc, releaseDst := src.Stream().(*delayed.Stream).Hold(), dst.Stream().(*delayed.Stream).Hold()
	require.NoError(t, kind.Write(src, []byte("final")))
	sent, sendErr := result()
	received, recvErr := result()
	from.Send(1, src, sent)
	to.Recv(1, dst, received)
	require.NoError(t, <-sendErr)
	require.NoError(t, <-recvErr)
	require.NoError(t, kind.Write(src, []byte("reuse")))
	releaseSrc()
	releaseDst()
	require.Equal(t, "final", contents(t, kind, dst))
	require.Equal(t, "reuse", contents(t, kind, src))
}

// A Send that is aborted after the receiver has enqueued its copy completes at once, and later work
// on the stream of its memory waits for the copy.
func TestAbortBehindAnEnqueuedCopy(t *testing.T) {
	kind := newKind(t)
	near, far := connect(t)
	// The sender does not get the confirmation.
	from, to, _ := open(t, newShare(kind), near, withholding{far})
	src, dst := alloc(t, kind, "bytes"), alloc(t, kind, "-----")
	defer dst.Stream().(*delayed.Stream).Hold()()
	sent, sendErr := result()
	received, recvErr := result()
	from.Send(1, src, sent)
	to.Recv(1, dst, received)
	require.NoError(t, <-recvErr)
	from.Abort(1, io.ErrNoProgress)
	require.Equal(t, io.ErrNoProgress, <-sendErr)
	event, err := src.Stream().Record()
	require.NoError(t, err)
	done, err := event.Done()
	require.NoError(t, err)
	require.False(t, done, "the copy is held")
}

// withholding is a connection that drops written frames.
type withholding struct{ transport.Conn }

func (withholding) WriteFrames(...transport.Frame) error { return nil }

// An Abort, or the end of the channel, makes Stopped return the cause in a pull that runs, and
// prevents a pull that has not begun. Each done is called once, with the cause.
func TestPullsAreStopped(t *testing.T) {
	for name, stop := range map[string]func(e *onesided.Engine){
		"abort": func(e *onesided.Engine) { e.Abort(1, io.ErrNoProgress); e.Abort(2, io.ErrNoProgress) },
		"close": func(e *onesided.Engine) { e.Close(io.ErrNoProgress) },
	} {
		t.Run(name, func(t *testing.T) {
			kind := newKind(t)
			f := newShare(kind)
			pulled, stopped := make(chan *onesided.Recv, 2), make(chan struct{})
			f.hook = func(r *onesided.Recv) { pulled <- r; <-stopped }
			near, far := connect(t)
			from, to, broken := open(t, f, near, far)
			sent, _ := result()
			received, recvErr := result()
			for id := range uint64(2) {
				from.Send(id+1, alloc(t, kind, "bytes"), sent)
				to.Recv(id+1, alloc(t, kind, "-----"), received)
			}
			running := <-pulled
			require.NoError(t, running.Stopped())
			ended := make(chan struct{})
			go func() { defer close(ended); stop(to) }()
			require.Equal(t, io.ErrNoProgress, <-recvErr, "the one that waits")
			require.Empty(t, recvErr, "the other one's memory is in use")
			require.Equal(t, io.ErrNoProgress, running.Stopped())
			close(stopped)
			require.Equal(t, io.ErrNoProgress, <-recvErr)
			<-ended
			require.NoError(t, to.Close(nil))
			require.Empty(t, recvErr)
			require.Empty(t, pulled, "the one that waited was not pulled")
			if name == "abort" {
				require.Empty(t, broken)
			}
		})
	}
}

// A Recv whose pull returns nil succeeds even if it was aborted, or the channel was closed, during
// the pull. After an Abort the Send succeeds too.
func TestPulledTensorIsDelivered(t *testing.T) {
	for name, stop := range map[string]func(e *onesided.Engine) error{
		"abort": func(e *onesided.Engine) error { e.Abort(1, io.ErrNoProgress); return nil },
		"close": func(e *onesided.Engine) error { return e.Close(io.ErrNoProgress) },
	} {
		t.Run(name, func(t *testing.T) {
			kind := newKind(t)
			pulled, stopped := make(chan *onesided.Recv, 2), make(chan struct{})
			f := newShare(&late{kind, func() { <-stopped }})
			f.hook = func(r *onesided.Recv) { pulled <- r }
			near, far := connect(t)
			from, to, broken := open(t, f, near, far)
			src, dst := alloc(t, kind, "bytes"), alloc(t, kind, "-----")
			sent, sendErr := result()
			received, recvErr := result()
			from.Send(1, src, sent)
			to.Recv(1, dst, received)
			running := <-pulled
			require.NoError(t, running.Stopped())
			ended := make(chan error, 1)
			go func() { ended <- stop(to) }()
			for running.Stopped() == nil {
				runtime.Gosched()
			}
			require.Empty(t, recvErr)
			close(stopped)
			require.NoError(t, <-recvErr)
			require.NoError(t, <-ended)
			require.Equal(t, "bytes", contents(t, kind, dst))
			if name == "abort" {
				require.NoError(t, <-sendErr)
				require.Empty(t, broken)
				require.Zero(t, from.Kept())
				require.Zero(t, to.Kept())
			}
			require.NoError(t, to.Close(nil))
			require.Empty(t, recvErr)
		})
	}
}

// late is a kind that calls copied after each copy between devices.
type late struct {
	*delayed.Kind
	copied func()
}

func (k *late) Copy(dst, src device.Buffer) error {
	err := k.Kind.Copy(dst, src)
	if !dst.IsHost() && !src.IsHost() {
		k.copied()
	}
	return err
}

// The end of the pull of an aborted Recv does not affect a later Recv with the same id, which
// receives the next tensor.
func TestAbortedPullLeavesLaterRecv(t *testing.T) {
	kind := newKind(t)
	f := newShare(kind)
	pulled, stopped := make(chan *onesided.Recv, 2), make(chan struct{})
	f.hook = func(r *onesided.Recv) { pulled <- r; <-stopped }
	near, far := connect(t)
	from, to, _ := open(t, f, near, far)
	sent, sendErr := result()
	received, recvErr := result()
	again, againErr := result()
	from.Send(1, alloc(t, kind, "first"), sent)
	to.Recv(1, alloc(t, kind, "-----"), received)
	<-pulled
	to.Abort(1, io.ErrNoProgress)
	to.Recv(1, alloc(t, kind, "-----"), again)
	close(stopped)
	require.Equal(t, io.ErrNoProgress, <-recvErr)
	from.Abort(1, io.ErrNoProgress)
	require.Equal(t, io.ErrNoProgress, <-sendErr)
	from.Send(1, alloc(t, kind, "later"), sent)
	require.NoError(t, <-sendErr)
	require.NoError(t, <-againErr)
}

// If Pull returns channel.ErrAborted, the Recv waits for an Abort; if it returns
// io.ErrUnexpectedEOF, the channel ends; after another error only the Recv fails.
func TestOutcomesOfPull(t *testing.T) {
	fault := errors.New("the copy failed")
	for name, c := range map[string]struct {
		fault  error
		waits  bool // for an Abort
		breaks bool
	}{
		"fault":     {fault: fault},
		"revoked":   {fault: channel.ErrAborted, waits: true},
		"peer gone": {fault: io.ErrUnexpectedEOF, breaks: true},
	} {
		t.Run(name, func(t *testing.T) {
			kind := newKind(t)
			near, far := connect(t)
			from, to, broken := open(t, newShare(&faulty{kind, c.fault}), near, far)
			sent, sendErr := result()
			received, recvErr := result()
			from.Send(1, alloc(t, kind, "bytes"), sent)
			to.Recv(1, alloc(t, kind, "-----"), received)
			switch {
			case c.waits:
				from.Abort(1, io.ErrNoProgress)
				require.Equal(t, io.ErrNoProgress, <-sendErr)
				to.Abort(1, io.ErrNoProgress)
				require.Equal(t, io.ErrNoProgress, <-recvErr)
			case c.breaks:
				require.ErrorIs(t, <-recvErr, c.fault)
				require.Error(t, <-sendErr)
				require.Error(t, <-broken)
			default:
				require.ErrorIs(t, <-recvErr, c.fault)
				var named *channel.Error
				to.Recv(2, alloc(t, kind, "-----"), received)
				from.Send(2, alloc(t, kind, "bytes"), sent)
				require.ErrorAs(t, <-recvErr, &named)
				require.Empty(t, broken)
			}
		})
	}
}

// faulty is a kind whose copies between devices fail.
type faulty struct {
	*delayed.Kind
	fault error
}

func (k *faulty) Copy(dst, src device.Buffer) error {
	if dst.IsHost() || src.IsHost() {
		return k.Kind.Copy(dst, src)
	}
	return k.fault
}

// Frames that violate the protocol end the channel with channel.ErrProtocol. Confirmations and
// revocations of unknown transfers are ignored.
func TestHostileFrames(t *testing.T) {
	text := func(kind onesided.Kind, numbers ...uint64) []byte {
		p := []byte{byte(kind)}
		for _, n := range numbers {
			p = binary.LittleEndian.AppendUint64(p, n)
		}
		return p
	}
	valid := text(onesided.Describe, 8, 1, 5)
	for name, frames := range map[string][][]byte{
		"described twice, without a Recv": {valid, valid},
		"another length":                  {text(onesided.Describe, 7, 1, 6)},
		"copied without a pull":           {text(onesided.Copied, 9)},
		"too long":                        {append(valid, 0)},
		"empty":                           {{}},
		"too many":                        nil,
	} {
		t.Run(name, func(t *testing.T) {
			kind := newKind(t)
			peer, near := connect(t)
			to, broken := openEnd(t, newShare(kind), near)
			received, recvErr := result()
			to.Recv(7, alloc(t, kind, "-----"), received)
			sent, sendErr := result()
			to.Send(9, alloc(t, kind, "-----"), sent)
			frames = append([][]byte{text(onesided.Copied, 100), text(onesided.Revoke, 100)}, frames...)
			for i, p := range frames {
				err := peer.WriteFrames(transport.Frame{p})
				if err != nil && i == len(frames)-1 { // the engine has closed at the header of the bad frame
					require.ErrorIs(t, err, syscall.EPIPE)
				} else {
					require.NoError(t, err)
				}
			}
			for id := uint64(0); name == "too many" && len(broken) == 0; id++ {
				_ = peer.WriteFrames(transport.Frame{text(onesided.Describe, 1000+id, 1, 5)})
			}
			require.ErrorIs(t, <-recvErr, channel.ErrProtocol)
			require.ErrorIs(t, <-sendErr, channel.ErrProtocol)
			require.ErrorIs(t, <-broken, channel.ErrProtocol)
		})
	}
}

// Neither end retains anything of tensors that were copied, or aborted by either end at any time.
func TestKeepsNothing(t *testing.T) {
	kind := newKind(t)
	f := newShare(kind)
	near, far := connect(t)
	from, to, _ := open(t, f, near, far)
	buf := func() device.Buffer { return alloc(t, kind, "bytes") }
	done := make(chan error, 8)
	wait := func(err error) { done <- err }
	for id := uint64(0); id < 100; id += 4 {
		from.Send(id, buf(), wait) // copied
		to.Recv(id, buf(), wait)
		from.Send(id+1, buf(), wait) // has no Recv
		from.Abort(id+1, io.EOF)
		to.Abort(id+2, io.EOF) // before it is described
		from.Send(id+2, buf(), wait)
		from.Abort(id+2, io.EOF)
		to.Recv(id+3, buf(), wait) // has no Send
		to.Abort(id+3, io.EOF)
		for range 5 {
			<-done
		}
	}
	from.Send(100, buf(), wait) // all earlier descriptions have been handled
	to.Recv(100, buf(), wait)
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	require.Zero(t, from.Kept())
	require.Zero(t, to.Kept())
	require.Empty(t, f.all)
}
