package pipe_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestWriteConfirmed checks that WriteConfirmed returns once the peer has read or discarded the
// message and all earlier ones, and not before.
func TestWriteConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connect(t, memPath())
		write(t, client, message(1, []int{10}, nil))
		var confirmed atomic.Int32
		confirm := func(m *pipe.Message) {
			go func() {
				if client.WriteConfirmed(context.Background(), m) == nil {
					confirmed.Add(1)
				}
			}()
			synctest.Wait()
		}
		confirm(message(2, []int{10}, nil))
		confirm(message(3, nil, []int{20}, device.CPU()))
		var in []*pipe.Incoming
		for range 3 {
			next, err := server.Next(t.Context())
			require.NoError(t, err)
			in = append(in, next)
		}
		synctest.Wait()
		require.Zero(t, confirmed.Load())
		read(t, in[0])
		synctest.Wait()
		require.Zero(t, confirmed.Load())
		read(t, in[1])
		synctest.Wait()
		require.Equal(t, int32(1), confirmed.Load())
		require.NoError(t, in[2].Discard(t.Context()))
		synctest.Wait()
		require.Equal(t, int32(2), confirmed.Load())
	})
}

// TestWriteConfirmedAfterRead checks on every path that WriteConfirmed succeeds if the peer reads
// at once, perhaps before the request for a confirmation arrives.
func TestWriteConfirmedAfterRead(t *testing.T) {
	onEveryPath(t, func(t *testing.T, client, server *pipe.Pipe) {
		go func() {
			for {
				in, err := server.Next(testContext(t))
				if err != nil || in.Read(testContext(t), pipe.NewAllocation(in.Descriptor())) != nil {
					return
				}
			}
		}()
		for i := range race.Pick(100, 30) {
			require.NoError(t, client.WriteConfirmed(testContext(t), message(i, []int{i}, []int{i})))
		}
		require.NoError(t, client.Close())
	})
}

func TestWriteUnconfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connect(t, memPath())
		ctx, cancel := context.WithCancelCause(t.Context())
		result := make(chan error, 1)
		go func() { result <- client.WriteConfirmed(ctx, message(1, []int{10}, nil)) }()
		synctest.Wait()
		cancel(errEnough)
		err := <-result
		require.ErrorIs(t, err, pipe.ErrUnconfirmed)
		require.ErrorIs(t, err, errEnough)
		expect(t, server, message(1, []int{10}, nil)) // the pipe is still open

		go func() { result <- client.WriteConfirmed(t.Context(), message(2, []int{10}, nil)) }()
		synctest.Wait()
		server.Abort(errors.New("the disk is full"))
		err = <-result
		require.ErrorIs(t, err, pipe.ErrUnconfirmed)
		require.ErrorContains(t, err, "the disk is full")
	})
}

// TestPeerReceivesCloseReason checks that the text of the cause that one end gives to Abort is in
// the errors of all calls at the other end.
func TestPeerReceivesCloseReason(t *testing.T) {
	onEveryPath(t, func(t *testing.T, client, server *pipe.Pipe) {
		next := make(chan error, 1)
		go func() {
			_, err := client.Next(testContext(t))
			next <- err
		}()
		op, _, _ := blockWriter(t, testContext(t), client, server)
		server.Abort(errors.New("the disk is full"))
		for _, err := range []error{<-next, op.Wait(testContext(t)), client.Write(testContext(t), &pipe.Message{})} {
			require.ErrorContains(t, err, "the disk is full")
			require.True(t, errors.Is(err, pipe.ErrPeerClosed) || errors.Is(err, pipe.ErrPeerLost), "%v", err)
		}
	})
}

func TestOrderlyCloseHasNoReason(t *testing.T) {
	client, server := connect(t, memPath())
	require.NoError(t, server.Close())
	_, err := client.Next(testContext(t))
	require.ErrorIs(t, err, pipe.ErrPeerClosed)
	require.NotContains(t, err.Error(), "its reason")
}

// TestReadMessageIsConfirmedBeforeClose checks that WriteConfirmed succeeds for a message that was
// read even if the reader closes immediately afterwards.
func TestReadMessageIsConfirmedBeforeClose(t *testing.T) {
	for _, size := range []int{10, 1 << 20} {
		onEveryPath(t, func(t *testing.T, client, server *pipe.Pipe) {
			confirmed := make(chan error, 1)
			go func() { confirmed <- client.WriteConfirmed(testContext(t), message(1, nil, []int{size})) }()
			in, err := server.Next(testContext(t))
			require.NoError(t, err)
			require.NoError(t, in.Read(testContext(t), pipe.NewAllocation(in.Descriptor())))
			closed := make(chan error, 1)
			go func() { closed <- server.Close() }()
			require.NoError(t, <-confirmed)
			require.NoError(t, client.Close())
			require.NoError(t, <-closed)
		})
	}
}

// TestUnreadMessageIsNotConfirmed checks that WriteConfirmed fails with ErrUnconfirmed for a
// message that the peer has not read when it closes.
func TestUnreadMessageIsNotConfirmed(t *testing.T) {
	onEveryPath(t, func(t *testing.T, client, server *pipe.Pipe) {
		op := client.WriteAsync(testContext(t), message(1, []int{10}, nil))
		confirmed := make(chan error, 1)
		go func() { confirmed <- client.WriteConfirmed(testContext(t), message(2, []int{10}, nil)) }()
		for range 2 {
			_, err := server.Next(testContext(t))
			require.NoError(t, err)
		}
		require.NoError(t, op.Wait(testContext(t)))
		closed := make(chan error, 1)
		go func() { closed <- server.Close() }()
		require.ErrorIs(t, <-confirmed, pipe.ErrUnconfirmed)
		require.NoError(t, client.Close())
		require.NoError(t, <-closed)
	})
}
