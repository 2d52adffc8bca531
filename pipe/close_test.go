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
	"github.com/tensorpipe-go/tensorpipe/internal/race"
	"github.com/tensorpipe-go/tensorpipe/internal/simnet"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// More messages than the peer takes in ahead must survive a graceful close.
func TestCloseDeliversWhatWasWritten(t *testing.T) {
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

// What an end sent before it closed arrives also while it discards a tensor that
// the other end is sending.
func TestCloseDeliversAgainstTraffic(t *testing.T) {
	for _, path := range paths() {
		if strings.Contains(path.name, "xth") || strings.Contains(path.name, "cma+compatible") {
			continue // its messages have not left before they are read
		}
		t.Run(path.name, func(t *testing.T) {
			client, server := connect(t, path)
			against := server.WriteAsync(testContext(t), message(1, nil, []int{race.Pick(32<<20, 16<<20)}, device.CPU()))
			next(t, client) // what has not begun to leave when the peer closes is refused
			size := 100_000
			if path.dialect == pipe.DialectNative {
				size = 10_000 // larger ones have not left before they are read
			}
			m := message(2, []int{1000}, []int{size}, device.CPU())
			write(t, client, m)
			require.NoError(t, client.Close())
			expect(t, server, m)
			require.NoError(t, against.Wait(testContext(t)))
		})
	}
}

// An end that closes without reading must not make the other end's writes
// hang, nor wait for them for ever.
func TestCloseDiscardsWhatComes(t *testing.T) {
	onEveryPath(t, func(t *testing.T, client, server *pipe.Pipe) {
		var ops []*pipe.WriteOp
		for i := range race.Pick(40, 15) {
			ops = append(ops, server.WriteAsync(testContext(t), message(i, []int{1 << 20}, []int{1 << 20})))
		}
		_, err := client.Next(testContext(t)) // taken, and never read
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

// Ends that close at the same moment take each other for closed, not for cut
// off.
func TestCloseAtOnce(t *testing.T) {
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

// The connections of a pipe have paces of their own. Whichever lags behind, a
// tensor whose target was chosen before the end closed still comes.
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

// The same in the native dialect, where the end that sent it closes, and it moves on
// the lanes of mpt: those of an end that closes end in any order.
func TestNativeCloseWithOneSlowConnection(t *testing.T) {
	const links = 4 // the session, bulk, and two lanes
	for slow := range links {
		t.Run(fmt.Sprint("link ", slow), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := simnet.New(mem.New(mem.NewNetwork()), simnet.OnLink(slow, simnet.Delay(time.Second)))
				path := simulated(network, mpt.New(mpt.Lanes{Count: links - 2, Transport: network}))
				client, server := connect(t, path, func(o *pipe.Options) { o.Dialect = pipe.DialectNative })
				for !onLastLink(network, links) {
					require.NoError(t, <-leave(t, client, server))
					time.Sleep(time.Second)
				}
				read := leave(t, client, server)
				require.NoError(t, client.Close())
				require.NoError(t, <-read)
				_, err := server.Next(t.Context())
				require.ErrorIs(t, err, pipe.ErrPeerClosed)
			})
		})
	}
}

// onLastLink reports whether a tensor has moved on the last of so many links.
func onLastLink(network *simnet.Network, links int) bool {
	all := network.Links()
	return len(all) == links && all[links-1].Sent(simnet.Dialled).Bytes > 1<<20
}

// leave returns when a large tensor has left the client, while the server reads it.
func leave(t *testing.T, client, server *pipe.Pipe) (read <-chan error) {
	data := pattern(5<<20, 1)
	op := client.WriteAsync(t.Context(), &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(data)}}})
	in, err := server.Next(t.Context())
	require.NoError(t, err)
	a := pipe.NewAllocation(in.Descriptor())
	outcome := make(chan error, 1)
	go func() {
		err := in.Read(t.Context(), a)
		if got, _ := a.Tensors[0].Contiguous(); err == nil && !bytes.Equal(got, data) {
			err = errors.New("wrong bytes")
		}
		outcome <- err
	}()
	require.NoError(t, op.Wait(t.Context()))
	return outcome
}

// simulated is the path over a network, in the compatible dialect.
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

// A peer that closes and never ends its replies, in which targets were to come, is
// not waited for.
func TestCloseWithoutAnEndOfReplies(t *testing.T) {
	const replies = 1 // the second link
	synctest.Test(t, func(t *testing.T) {
		silent := simnet.HalfOpenAt(simnet.AfterFrames(replies, simnet.Dialled, 1)) // once it is open
		client, server := connect(t, simulated(simnet.New(mem.New(mem.NewNetwork()), silent), basic.New()))
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

// A peer that neither reads nor closes costs the time allowed and no more.
func TestCloseTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connect(t, memPath(), usual)
		write(t, server, message(1, nil, nil))
		op := client.WriteAsync(t.Context(), message(2, []int{1 << 20}, nil))
		_, err := server.Next(t.Context()) // and never reads it
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

func TestAbortTellsEveryCallTheCause(t *testing.T) {
	onEveryPath(t, func(t *testing.T, client, server *pipe.Pipe) {
		cause := errors.New("the application changed its mind")
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

// A pipe whose messages nobody reads must not be taken for one whose peer left
// a connection open.
func TestSlowReaderOutlivesClosedPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connect(t, memPath())
		var sent []*pipe.Message
		for i := range 50 {
			m := message(i, []int{10}, nil)
			sent = append(sent, m)
			write(t, client, m)
		}
		client.Close() // times out: the end stands behind messages nobody takes
		time.Sleep(time.Hour)
		for _, m := range sent {
			expect(t, server, m)
		}
		_, err := server.Next(context.Background())
		require.ErrorIs(t, err, pipe.ErrPeerClosed)
	})
}
