package cudaipc

import (
	"context"
	"encoding/binary"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/bulk"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// readFrame returns the next frame of c.
func readFrame(t *testing.T, c transport.Conn) []byte {
	t.Helper()
	type frame struct {
		text []byte
		err  error
	}
	f := testwait.Finish(t, testwait.Start(func() frame {
		n, err := c.NextFrame()
		if err != nil {
			return frame{err: err}
		}
		p := make([]byte, n)
		return frame{p, c.ReadBody(p)}
	}))
	require.NoError(t, f.err)
	return f.text
}

// In the compatible dialect a peer that is TensorPipe's gets the chunks of 1 MiB on the first connection
// and an empty frame for each on the second, and is received likewise.
func TestCompatibleFrames(t *testing.T) {
	const size = 2<<20 + 500
	sizes := []int{1 << 20, 1 << 20, 500}
	for _, index := range []int{-1, 0} {
		f := newFixture(t, Options{})
		near, far := connectedConns(t, 2)
		e := openEnd(t, NewBasic(f.Kind, basic.New()), false, near, channel.RoleConnect, func(error) {})
		sent, received := make(chan error, 1), make(chan error, 1)
		e.Send(0, f.tensor(index, large(1, size)), func(err error) { sent <- err })
		var got []byte
		for _, n := range sizes {
			require.Empty(t, readFrame(t, far[1]))
			chunk := readFrame(t, far[0])
			require.Len(t, chunk, n)
			got = append(got, chunk...)
		}
		require.NoError(t, testwait.Finish(t, sent))
		require.Equal(t, large(1, size), got)

		dst := f.tensor(index, make([]byte, size))
		e.Recv(0, dst, func(err error) { received <- err })
		written := testwait.Start(func() error {
			for at := 0; at < size; at += 1 << 20 {
				if err := far[1].WriteFrames(transport.Frame{}); err != nil {
					return err
				}
				if err := far[0].WriteFrames(transport.Frame{got[at:min(size, at+1<<20)]}); err != nil {
					return err
				}
			}
			return nil
		})
		require.NoError(t, testwait.Finish(t, received))
		require.NoError(t, testwait.Finish(t, written))
		require.Equal(t, got, f.bytesOf(dst))
	}
}

func nativeFrame(kind byte, id uint64) transport.Frame {
	return transport.Frame{binary.LittleEndian.AppendUint64([]byte{kind}, id)}
}

// In the native dialect the receiver announces its memory, and the sender each chunk.
func TestNativeFrames(t *testing.T) {
	f := newFixture(t, Options{})
	near, far := connectedConns(t, 3)
	e := openEnd(t, NewBasic(f.Kind, xth.New()), true, near, channel.RoleConnect, func(error) {})
	control := far[2]
	done := func(error) {}
	e.Recv(7, f.tensor(0, make([]byte, 10)), done)
	require.Equal(t, nativeFrame(frameWanted, 7)[0], readFrame(t, control))
	e.Abort(7, nil)
	require.Equal(t, nativeFrame(frameWithdrawn, 7)[0], readFrame(t, control))
	e.Send(8, f.tensor(0, make([]byte, nativeChunk+1)), done)
	require.NoError(t, control.WriteFrames(nativeFrame(frameWanted, 9), nativeFrame(frameWithdrawn, 9), nativeFrame(frameWanted, 8)))
	for range 2 {
		require.Equal(t, nativeFrame(frameStaged, 8)[0], readFrame(t, control))
	}
	e.Send(9, f.tensor(0, make([]byte, 10)), done) // is not wanted any more
	e.Recv(10, f.tensor(0, make([]byte, 10)), done)
	require.Equal(t, nativeFrame(frameWanted, 10)[0], readFrame(t, control))
}

// Empty tensors complete while the host channel receives chunks whose ids there are those of the empty
// tensors here.
func TestEmptyTensorsDuringTransfers(t *testing.T) {
	f := newFixture(t, Options{})
	near, far := connectedConns(t, 1)
	ready := make(chan uint64, 2) // ids of the host channel that it receives
	host := bulk.New(bulk.Config{
		Open: func(ctx context.Context) (transport.Stream, error) {
			<-ctx.Done() // no chunk arrives
			return nil, ctx.Err()
		},
		Ready:  func(_ uint16, id uint64) { ready <- id },
		Broken: func(error) {},
	})
	t.Cleanup(func() { require.NoError(t, host.Close(nil)) })
	e, err := NewBasic(f.Kind, basic.New()).New(t.Context(), channel.Link{
		Native: true, Host: host.Lane(1), Conns: near, Peer: "peer", Broken: func(error) {}, Logger: slog.New(slog.DiscardHandler),
	}, channel.RoleConnect)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close(nil)) })

	received, completed := make(chan error, 2), make(chan error, 2)
	for _, id := range []uint64{100, 102} {
		e.Recv(id, f.tensor(0, make([]byte, 10)), func(err error) { received <- err })
		require.Equal(t, nativeFrame(frameWanted, id)[0], readFrame(t, far[0]))
		require.NoError(t, far[0].WriteFrames(nativeFrame(frameStaged, id)))
	}
	e.Recv(testwait.Finish(t, ready), device.Bytes(nil), func(err error) { completed <- err })
	e.Send(testwait.Finish(t, ready), device.Bytes(nil), func(err error) { completed <- err })
	require.NoError(t, testwait.Finish(t, completed))
	require.NoError(t, testwait.Finish(t, completed))
	require.Empty(t, received)
}

// A peer that breaks the protocol ends the channel, with a typed error.
func TestHostileControlFrames(t *testing.T) {
	for name, frames := range map[string][]transport.Frame{
		"unknown kind":       {nativeFrame(9, 1)},
		"wanted twice early": {nativeFrame(frameWanted, 5), nativeFrame(frameWanted, 5)},
		"wanted twice":       {nativeFrame(frameWanted, 1), nativeFrame(frameWanted, 1)},
		"too many chunks":    {nativeFrame(frameStaged, 2), nativeFrame(frameStaged, 2)},
		"short":              {{[]byte{frameWanted}}},
		"long":               {{make([]byte, 10)}},
		"empty":              {{}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, Options{})
			near, far := connectedConns(t, 3)
			broken := make(chan error, 1)
			e := openEnd(t, NewBasic(f.Kind, xth.New()), true, near, channel.RoleConnect, func(err error) { broken <- err })
			failed := make(chan error, 2)
			e.Send(1, f.tensor(0, make([]byte, 10)), func(err error) { failed <- err })
			e.Recv(2, f.tensor(0, make([]byte, 10)), func(err error) { failed <- err })
			require.Equal(t, nativeFrame(frameWanted, 2)[0], readFrame(t, far[2]))
			_ = far[2].WriteFrames(frames...) // fails if the channel has closed the connection before its end
			require.ErrorIs(t, testwait.Finish(t, broken), channel.ErrProtocol)
			require.ErrorIs(t, testwait.Finish(t, failed), channel.ErrProtocol)
			require.ErrorIs(t, testwait.Finish(t, failed), channel.ErrProtocol)
		})
	}
}

// Many tensors that are wanted and never sent end the channel, and do not use memory without bound.
func TestTooManyWantedTensors(t *testing.T) {
	f := newFixture(t, Options{})
	near, far := connectedConns(t, 3)
	broken := make(chan error, 1)
	openEnd(t, NewBasic(f.Kind, xth.New()), true, near, channel.RoleConnect, func(err error) { broken <- err })
	written := testwait.Start(func() (err error) {
		for id := uint64(0); id <= maxWanted && err == nil; id++ {
			err = far[2].WriteFrames(nativeFrame(frameWanted, id))
		}
		return nil
	})
	require.ErrorIs(t, testwait.Finish(t, broken), channel.ErrProtocol)
	require.NoError(t, testwait.Finish(t, written))
}

// Memory that the channel cannot move fails the transfer with a typed error. In the native dialect the
// next transfer succeeds; in the compatible one the channel ends.
func TestBasicRejectsOtherMemory(t *testing.T) {
	inBasicDialects(t, func(t *testing.T, f *fixture, b *basicFactory, native bool) {
		own := f.tensor(0, pattern(1, 10))
		foreign := device.On(own.Device(), foreignMemory{}, own.Stream())
		for _, c := range []struct {
			src  device.Buffer
			want error
		}{{foreign, device.ErrMemory}, {own.WithStream(nil), device.ErrStream}} {
			p := openPair(t, f, b, native)
			sent, received := make(chan error, 1), make(chan error, 1)
			p.to.Recv(0, f.tensor(1, make([]byte, 10)), func(err error) { received <- err })
			p.from.Send(0, c.src, func(err error) { sent <- err })
			require.ErrorIs(t, testwait.Finish(t, sent), c.want)
			if !native {
				require.Error(t, testwait.Finish(t, received))
				continue
			}
			p.to.Abort(0, nil)
			require.Error(t, testwait.Finish(t, received))
			p.next = 1
			dst := f.tensor(1, make([]byte, 10))
			p.start(t, own, dst)()
			require.Equal(t, pattern(1, 10), f.bytesOf(dst))
		}
	})
}

// foreignMemory is memory of another implementation.
type foreignMemory struct{}

func (foreignMemory) Len() int { return 10 }
