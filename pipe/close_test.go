package pipe_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/simnet"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// TestCloseDeliversWrittenMessages checks that a graceful close still delivers all messages that
// were written before, more than the peer reads ahead, and which errors both ends return
// afterwards.
func TestCloseDeliversWrittenMessages(t *testing.T) {
	onEveryPath(t, func(t *testing.T, client, server *pipe.Pipe) {
		var sent []*pipe.Message
		var ops []*pipe.WriteOp
		for i := range 60 {
			m := message(i, []int{i * 100}, []int{i * 5000}, device.CPU())
			sent = append(sent, m)
			ops = append(ops, client.WriteAsync(testContext(t), m))
		}
		closed := make(chan error, 1)
		go func() { closed <- client.Close() }()
		for _, m := range sent {
			expect(t, server, m)
		}
		_, err := server.Next(testContext(t))
		require.ErrorIs(t, err, pipe.ErrPeerClosed)
		require.NoError(t, <-closed)
		for _, op := range ops {
			require.NoError(t, op.Wait(testContext(t)))
		}
		require.ErrorIs(t, server.Write(testContext(t), &pipe.Message{}), pipe.ErrPeerClosed)
		require.ErrorIs(t, client.Write(testContext(t), &pipe.Message{}), pipe.ErrClosed)
		require.NoError(t, server.Close())
	})
}

// TestCloseDeliversDespiteIncomingMessages checks that messages that an end has written before
// Close are delivered, although Close discards a large tensor that the peer is sending at the same
// time.
func TestCloseDeliversDespiteIncomingMessages(t *testing.T) {
	for _, path := range paths() {
		if strings.Contains(path.name, "xth") || strings.Contains(path.name, "cma+compatible") {
			continue // its writes do not return before the message is read
		}
		t.Run(path.name, func(t *testing.T) {
			client, server := connect(t, path)
			incoming := server.WriteAsync(testContext(t), message(1, nil, []int{race.Pick(32<<20, 16<<20)}, device.CPU()))
			next(t, client) // messages whose sending has not begun when the peer closes are rejected
			size := 100_000
			if path.dialect == pipe.DialectNative {
				size = 10_000 // writes of larger ones do not return before the message is read
			}
			m := message(2, []int{1000}, []int{size}, device.CPU())
			write(t, client, m)
			require.NoError(t, client.Close())
			expect(t, server, m)
			require.NoError(t, incoming.Wait(testContext(t)))
		})
	}
}

// TestCloseDiscardsIncomingMessages checks that Close of an end that has read nothing returns
// without an error, and that the writes of the peer end too: they succeed, or fail because the peer
// is gone.
func TestCloseDiscardsIncomingMessages(t *testing.T) {
	short.Skip(t, "80 MiB on every path")
	onEveryPath(t, func(t *testing.T, client, server *pipe.Pipe) {
		var ops []*pipe.WriteOp
		for i := range race.Pick(40, 15) {
			ops = append(ops, server.WriteAsync(testContext(t), message(i, []int{1 << 20}, []int{1 << 20})))
		}
		_, err := client.Next(testContext(t)) // returned, and never read
		require.NoError(t, err)
		require.NoError(t, client.Close())
		for _, op := range ops {
			if err := op.Wait(testContext(t)); err != nil { // in the middle of a message
				require.True(t, isAny(err, []error{pipe.ErrPeerClosed, pipe.ErrPeerLost}), "%v", err)
			}
		}
	})
}

func TestCloseFromBothEnds(t *testing.T) {
	onEveryPath(t, func(t *testing.T, client, server *pipe.Pipe) {
		ops := []*pipe.WriteOp{
			client.WriteAsync(testContext(t), message(1, []int{10}, nil)),
			server.WriteAsync(testContext(t), message(2, []int{10}, nil)),
		}
		closed := make(chan error, 1)
		go func() { closed <- client.Close() }()
		require.NoError(t, server.Close())
		require.NoError(t, <-closed)
		for _, op := range ops {
			<-op.Done()
		}
		<-client.Done()
		require.ErrorIs(t, client.Err(), pipe.ErrClosed)
	})
}

// TestCloseBothEndsAtOnce checks that two ends that close at the same time both see an orderly
// close, and not a lost peer.
func TestCloseBothEndsAtOnce(t *testing.T) {
	for _, path := range paths() {
		t.Run(path.name, func(t *testing.T) {
			a, b := newContext(t, path), newContext(t, path)
			l, err := b.Listen(testContext(t), path.url)
			require.NoError(t, err)
			for range race.Pick(20, 8) {
				client, err := a.Dial(testContext(t), l.URLs()[0])
				require.NoError(t, err)
				server, err := l.Accept(testContext(t))
				require.NoError(t, err)
				closeBoth(t, client, server)
				require.ErrorIs(t, client.Err(), pipe.ErrClosed)
				require.ErrorIs(t, server.Err(), pipe.ErrClosed)
			}
		})
	}
}

// TestCloseWithOneSlowConnection checks, in the compatible dialect, that a tensor is delivered if
// the receiver has chosen its target and then closes, whichever connection of the pipe is slow.
func TestCloseWithOneSlowConnection(t *testing.T) {
	for _, factory := range []channel.Factory{basic.New(), xth.New()} {
		links := 3 + factory.Connections(false)
		for slow := range links {
			t.Run(fmt.Sprintf("%T link %d", factory, slow), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					network := simnet.New(mem.New(mem.NewNetwork()), simnet.OnLink(slow, simnet.Delay(time.Second)))
					client, server := connect(t, simulated(network, factory))
					closeWhileReading(t, client, server)
					require.Len(t, network.Links(), links)
				})
			})
		}
	}
}

// TestNativeCloseWithOneSlowConnection checks, in the native dialect, that a tensor on the lanes of
// the channel mpt is delivered after its sender has closed, whichever connection is slow, and thus
// in whatever order the lanes end.
func TestNativeCloseWithOneSlowConnection(t *testing.T) {
	const links = 4 // the session, bulk, and two lanes
	for slow := range links {
		t.Run(fmt.Sprint("link ", slow), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := simnet.New(mem.New(mem.NewNetwork()), simnet.OnLink(slow, simnet.Delay(time.Second)))
				path := simulated(network, mpt.New(mpt.Lanes{Count: links - 2, Transport: network}))
				client, server := connect(t, path, func(o *pipe.Options) { o.Dialect = pipe.DialectNative })
				for !onLastLink(network, links) {
					require.NoError(t, <-sendWhileReading(t, client, server))
					time.Sleep(time.Second)
				}
				read := sendWhileReading(t, client, server)
				require.NoError(t, client.Close())
				require.NoError(t, <-read)
				_, err := server.Next(t.Context())
				require.ErrorIs(t, err, pipe.ErrPeerClosed)
			})
		})
	}
}

// onLastLink reports whether network has exactly the given number of links, the connections that
// were dialled, and more than 1 MiB was sent on the last one.
func onLastLink(network *simnet.Network, links int) bool {
	all := network.Links()
	return len(all) == links && all[links-1].Sent(simnet.Dialled).Bytes > 1<<20
}

// sendWhileReading sends a large tensor from client to server and returns once the write is done,
// while the server may still read. The returned Go channel receives the result of the Read, which
// is an error also if bytes are wrong.
func sendWhileReading(t *testing.T, client, server *pipe.Pipe) (read <-chan error) {
	data := pattern(5<<20, 1)
	op := client.WriteAsync(t.Context(), &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(data)}}})
	in, err := server.Next(t.Context())
	require.NoError(t, err)
	a := pipe.NewAllocation(in.Descriptor())
	result := make(chan error, 1)
	go func() {
		err := in.Read(t.Context(), a)
		if got, _ := a.Tensors[0].Contiguous(); err == nil && !bytes.Equal(got, data) {
			err = errors.New("wrong bytes")
		}
		result <- err
	}()
	require.NoError(t, op.Wait(t.Context()))
	return result
}

// simulated returns a path whose pipes run over network, in the compatible dialect, with factory as
// the only channel.
func simulated(network *simnet.Network, factory channel.Factory) path {
	return path{url: "sim://net", opts: func() pipe.Options {
		return pipe.Options{
			Dialect:    pipe.DialectCompatible,
			Transports: []pipe.TransportEntry{{Name: "sim", Transport: network}},
			Channels:   []pipe.ChannelEntry{{Name: "tensors", Factory: factory}},
		}
	}}
}

func closeWhileReading(t *testing.T, client, server *pipe.Pipe) {
	m := message(1, []int{1000}, []int{70_000})
	op := client.WriteAsync(t.Context(), m)
	in, err := server.Next(t.Context())
	require.NoError(t, err)
	a := pipe.NewAllocation(in.Descriptor())
	read := make(chan error, 1)
	go func() { read <- in.Read(t.Context(), a) }()
	synctest.Wait()
	require.NoError(t, server.Close())
	require.NoError(t, <-read)
	same(t, m, in.Descriptor(), a)
	require.NoError(t, op.Wait(t.Context()))
	_, err = client.Next(t.Context())
	require.ErrorIs(t, err, pipe.ErrPeerClosed)
}

// TestCloseWithoutEndOfReplies checks, in the compatible dialect, that a write that waits for the
// peer to choose a target fails with ErrPeerClosed if the peer closes and the end of its replies is
// lost.
func TestCloseWithoutEndOfReplies(t *testing.T) {
	const replies = 1 // the second link
	synctest.Test(t, func(t *testing.T) {
		noEnd := simnet.HalfOpenAt(simnet.AfterFrames(replies, simnet.Dialled, 1)) // once it is open
		path := simulated(simnet.New(mem.New(mem.NewNetwork()), noEnd), basic.New())
		shortTimeout := func(o *pipe.Options) { o.CloseTimeout = time.Second } // less than the client's grace period
		client, server := connectContexts(t, newContext(t, path), newContext(t, path, shortTimeout), path.url)
		op := client.WriteAsync(t.Context(), message(1, nil, []int{10}))
		_, err := server.Next(t.Context())
		require.NoError(t, err)
		require.ErrorIs(t, server.Close(), pipe.ErrCloseTimeout)
		require.ErrorIs(t, op.Wait(t.Context()), pipe.ErrPeerClosed)
		client.Abort(nil)
	})
}

func TestCloseEndsBlockedCalls(t *testing.T) {
	onEveryPath(t, func(t *testing.T, client, server *pipe.Pipe) {
		in := make(chan error, 1)
		started := make(chan struct{})
		go func() {
			close(started)
			_, err := client.Next(testContext(t))
			in <- err
		}()
		<-started
		require.NoError(t, client.Close())
		require.ErrorIs(t, <-in, pipe.ErrClosed)
		_, err := server.Next(testContext(t))
		require.ErrorIs(t, err, pipe.ErrPeerClosed)
	})
}

// TestCloseTimesOut checks that Close returns after CloseTimeout, with an error that matches
// ErrCloseTimeout, if the peer neither reads nor closes.
func TestCloseTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connect(t, memPath(), defaultTimeouts)
		write(t, server, message(1, nil, nil))
		op := client.WriteAsync(t.Context(), message(2, []int{1 << 20}, nil))
		_, err := server.Next(t.Context()) // the message is never read
		require.NoError(t, err)
		begin := time.Now()
		err = client.Close()
		require.ErrorIs(t, err, pipe.ErrCloseTimeout)
		require.Equal(t, 5*time.Second, time.Since(begin))
		var timeout interface{ Timeout() bool }
		require.True(t, errors.As(err, &timeout) && timeout.Timeout())
		require.ErrorIs(t, op.Wait(t.Context()), pipe.ErrClosed)
	})
}

func TestAbortCauseIsReturnedByAllCalls(t *testing.T) {
	onEveryPath(t, func(t *testing.T, client, server *pipe.Pipe) {
		cause := errors.New("the application aborts")
		ops := []*pipe.WriteOp{
			client.WriteAsync(testContext(t), message(1, []int{8 << 20}, nil)),
			client.WriteAsync(testContext(t), message(2, nil, []int{8 << 20})),
		}
		client.Abort(cause)
		for _, op := range ops {
			require.ErrorIs(t, op.Wait(testContext(t)), cause)
		}
		require.ErrorIs(t, client.Write(testContext(t), &pipe.Message{}), cause)
		_, err := client.Next(testContext(t))
		require.ErrorIs(t, err, cause)
		<-client.Done()
		require.ErrorIs(t, client.Err(), cause)
		require.NoError(t, client.Close())
	})
}

func TestContextCloseEndsEverything(t *testing.T) {
	for _, path := range paths() {
		t.Run(path.name, func(t *testing.T) {
			a, b := newContext(t, path), newContext(t, path)
			client, server := connectContexts(t, a, b, path.url)
			require.NoError(t, b.Close())
			_, err := server.Next(testContext(t))
			require.ErrorIs(t, err, pipe.ErrClosed)
			_, err = client.Next(testContext(t))
			require.ErrorIs(t, err, pipe.ErrPeerClosed)
			_, err = b.Listen(testContext(t), path.url)
			require.ErrorIs(t, err, pipe.ErrClosed)
			_, err = b.Dial(testContext(t), path.url)
			require.Error(t, err)
			require.Zero(t, b.Stats().PipesOpen)
			require.Equal(t, uint64(1), b.Stats().PipesOpened)
		})
	}
}

// TestSlowReaderOutlivesClosedPeer checks that an application can read its messages long after the
// peer has closed. The pipe must not take this state for a peer that has left only some connections
// open.
func TestSlowReaderOutlivesClosedPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connect(t, memPath())
		var sent []*pipe.Message
		for i := range 50 {
			m := message(i, []int{10}, nil)
			sent = append(sent, m)
			write(t, client, m)
		}
		client.Close() // times out: the server has not read the messages before the end
		time.Sleep(time.Hour)
		for _, m := range sent {
			expect(t, server, m)
		}
		_, err := server.Next(context.Background())
		require.ErrorIs(t, err, pipe.ErrPeerClosed)
	})
}
