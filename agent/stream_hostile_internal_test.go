package agent

import (
	"context"
	"errors"
	"iter"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

var (
	victimStream = NewBidiStream[int, int]("test.victim")
	victimSum    = NewClientStream[int, int]("test.sum")
	victimCall   = NewFunc[int, int]("test.call")
)

// body returns n encoded as the body of a message.
func body(t *testing.T, n int) []byte {
	t.Helper()
	e := codec.NewEncoder(codec.NewRegistry(), codec.Limits{})
	require.NoError(t, e.Encode(&n))
	data, _, err := e.Finish()
	require.NoError(t, err)
	return data
}

// streamFrames are messages for the stream with the number id, from the end with the given flags,
// that violate the protocol, by a description. At that end the stream has sent the data 0.
func streamFrames(t *testing.T, flags byte, id uint64) map[string][]*pipe.Message {
	data := func(flags byte, id, seq uint64, body []byte) *pipe.Message {
		return &pipe.Message{Metadata: append(wire.AppendData(nil, flags, id, seq), body...)}
	}
	many := []*pipe.Message{}
	for i := range 200 {
		many = append(many, data(flags, id, uint64(i+1), make([]byte, 1<<14)))
	}
	far := uint64(math.MaxUint64)
	return map[string][]*pipe.Message{
		"beyond the credit":           many,
		"number again":                {data(flags, id, 0, body(t, 1))},
		"later number again":          {data(flags, id, 5, body(t, 1)), data(flags, id, 5, body(t, 1))},
		"largest number":              {data(flags, id, far, body(t, 1))},
		"credit of too many bytes":    {{Metadata: wire.AppendCredit(nil, flags, id, far)}},
		"credit that adds up to many": {{Metadata: wire.AppendCredit(nil, flags, id, maxCredit)}, {Metadata: wire.AppendCredit(nil, flags, id, maxCredit)}},
		"end with a body":             {data(flags|wire.FlagEnd, id, 1, body(t, 1))},
		"second end":                  {data(flags|wire.FlagEnd, id, 1, nil), data(flags|wire.FlagEnd, id, 2, nil)},
		"data after the end":          {data(flags|wire.FlagEnd, id, 1, nil), data(flags, id, 1, body(t, 1))},
	}
}

// streamBatches are batches, from the end with the given flags, that hold no value that can be decoded,
// by a description.
func streamBatches(t *testing.T, flags byte, id uint64) map[string]*pipe.Message {
	batch := func(values ...byte) *pipe.Message {
		return &pipe.Message{Metadata: append(wire.AppendData(nil, flags|wire.FlagBatch, id, 1), values...)}
	}
	payload := batch(1, 2)
	payload.Payloads = []pipe.Payload{{Data: []byte{1}}}
	tensor := batch(append([]byte{byte(len(body(t, 1)))}, body(t, 1)...)...)
	tensor.Tensors = []pipe.Tensor{{Buffer: device.Bytes([]byte{1})}}
	return map[string]*pipe.Message{
		"no value": batch(), "size cut off": batch(0x80), "size too large": batch(9, 1, 2),
		"huge size": batch(0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1), "empty value": batch(0),
		"no codec message": batch(2, 1, 2), "a payload": payload, "a tensor": tensor,
	}
}

// A batch that cannot be decoded fails its stream at the end that receives it, and nothing else.
func TestHostileBatches(t *testing.T) {
	for name := range streamBatches(t, 0, 0) {
		t.Run("caller/"+name, func(t *testing.T) {
			ended := make(chan error, 1)
			h := joinHostile(t, 1, func(_ context.Context, s *Stream[int, int]) error {
				var err error
				for _, err = range s.Receive() {
				}
				ended <- err
				return nil
			})
			s := h.openVictim(t)
			require.NoError(t, s.stream.conn.pipe.Write(t.Context(), streamBatches(t, wire.FlagCaller, s.stream.id)[name]))
			require.ErrorIs(t, testwait.Finish(t, ended), ErrArguments)
			h.requireSamePipe(t, s.stream.conn)
		})
		t.Run("handler/"+name, func(t *testing.T) {
			h := joinHostile(t, 0, func(ctx context.Context, s *Stream[int, int]) error {
				if err := errors.Join(s.Send(1), s.stream.conn.pipe.Write(ctx, streamBatches(t, 0, s.stream.id)[name])); err != nil {
					return err
				}
				<-ctx.Done()
				return context.Cause(ctx)
			})
			s := h.openVictim(t)
			var err error
			n := 0
			for _, err = range s.Receive() {
				n++
			}
			require.Equal(t, 2, n) // the value, and the error
			require.ErrorIs(t, err, ErrResult)
			h.requireSamePipe(t, s.stream.conn)
		})
	}
}

// The credit is that of the data in the order of their numbers, whatever the order in which they are
// handled: of three values within the credit the last one, a large one, comes before the second.
func TestCreditOfDataInAnotherOrder(t *testing.T) {
	h := joinHostile(t, 1, func(ctx context.Context, _ *Stream[int, int]) error {
		<-ctx.Done()
		return context.Cause(ctx)
	})
	s := h.openVictim(t)
	c := s.stream.conn
	for _, data := range []struct {
		seq  uint64
		size int
	}{{1, 90_000}, {3, 60_000}, {2, 100}} { // the window is 131,072 bytes, see joinHostile
		m := &pipe.Message{Metadata: append(wire.AppendData(nil, wire.FlagCaller, s.stream.id, data.seq), make([]byte, data.size)...)}
		require.NoError(t, c.pipe.Write(t.Context(), m))
	}
	for range 10 { // the answers come after the data were handled
		h.requireSamePipe(t, c)
	}
	require.Empty(t, h.lost)
	s.Cancel(errors.New("not needed any more"))
}

// hostileGroup is two workers of which one may violate the protocol. lost receives the reasons for
// which pipes of the other one, the victim, have ended.
type hostileGroup struct {
	group []*Agent
	lost  chan error
}

// joinHostile joins two workers; that with the rank victim reports its lost pipes. handler is called
// for each stream of victimStream.
func joinHostile(t *testing.T, victim int, handler func(ctx context.Context, s *Stream[int, int]) error) hostileGroup {
	h := hostileGroup{lost: make(chan error, 10)}
	h.group = joinInternal(t, 2, func(rank int, c *Config) {
		c.Listen = []string{"uv://127.0.0.1:0"}
		c.Limits.StreamBytes = 1 << 17
		if rank == victim {
			c.Events = &Events{PeerLost: func(i PeerLostInfo) { h.lost <- i.Err }}
		}
		c.Funcs = Funcs{
			victimStream.Serve(handler),
			victimCall.Serve(func(_ context.Context, n int) (int, error) { return n, nil }),
			victimSum.Serve(func(ctx context.Context, _ iter.Seq2[int, error]) (int, error) {
				<-ctx.Done()
				return 0, context.Cause(ctx)
			}),
		}
	})
	return h
}

// openVictim opens a stream to victimStream and sends one value, so that the handler has started.
func (h hostileGroup) openVictim(t *testing.T) *BidiStreamCall[int, int] {
	t.Helper()
	s, err := victimStream.Open(t.Context(), h.group[0], "worker1")
	require.NoError(t, err)
	require.NoError(t, s.Send(1))
	return s
}

// requireSamePipe requires that a call succeeds, over the connection c.
func (h hostileGroup) requireSamePipe(t *testing.T, c *conn) {
	t.Helper()
	_, err := victimCall.Call(t.Context(), h.group[0], "worker1", 1)
	require.NoError(t, err)
	require.Same(t, c, h.group[0].peers.find("worker1").conn.Load())
}

// requireRejected requires that the victim has ended the pipe with an error that matches
// ErrProtocol, and serves calls on a new one. The stream or call that err belongs to must have
// failed.
func (h hostileGroup) requireRejected(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err)
	require.ErrorIs(t, testwait.Finish(t, h.lost), ErrProtocol)
	n, err := victimCall.Call(t.Context(), h.group[0], "worker1", 3, WithRetry(Retry{Delay: time.Millisecond}))
	require.NoError(t, err)
	require.Equal(t, 3, n)
}

// A caller that violates the protocol of streams loses its pipe, and the handler its context.
func TestHostileCallerOfStream(t *testing.T) {
	for name := range streamFrames(t, 0, 0) {
		t.Run(name, func(t *testing.T) {
			ended := make(chan error, 1)
			h := joinHostile(t, 1, func(ctx context.Context, s *Stream[int, int]) error {
				for range s.Receive() {
					break // after one value, or the error if the stream has ended already
				}
				<-ctx.Done()
				ended <- context.Cause(ctx)
				return context.Cause(ctx)
			})
			s, err := victimStream.Open(t.Context(), h.group[0], "worker1")
			require.NoError(t, err)
			require.NoError(t, s.Send(1))
			for _, m := range streamFrames(t, wire.FlagCaller, s.stream.id)[name] {
				if s.stream.conn.pipe.Write(t.Context(), m) != nil {
					break // the pipe has ended
				}
			}
			for _, err = range s.Receive() {
			}
			h.requireRejected(t, err)
			require.ErrorIs(t, testwait.Finish(t, ended), ErrCallerGone)
		})
	}
}

// A called worker that violates the protocol of streams loses its pipe, and the caller the stream.
func TestHostileHandlerOfStream(t *testing.T) {
	for name := range streamFrames(t, 0, 0) {
		t.Run(name, func(t *testing.T) {
			h := joinHostile(t, 0, func(ctx context.Context, s *Stream[int, int]) error {
				if err := s.Send(1); err != nil {
					return err
				}
				for _, m := range streamFrames(t, 0, s.stream.id)[name] {
					if s.stream.conn.pipe.Write(ctx, m) != nil {
						break
					}
				}
				<-ctx.Done()
				return context.Cause(ctx)
			})
			s, err := victimStream.Open(t.Context(), h.group[0], "worker1")
			require.NoError(t, err)
			for _, err = range s.Receive() {
				if err != nil {
					break
				}
				<-s.stream.ctx.Done() // data that came before the violation are not received
			}
			h.requireRejected(t, err)
			require.ErrorIs(t, err, ErrUnreachable)
		})
	}
}

// Data before the credit of the handler, for an end that does not receive, or for a call that is not
// a stream, end the pipe. Data for a call that has ended do not.
func TestHostileStreamFrames(t *testing.T) {
	data := func(id uint64) *pipe.Message {
		return &pipe.Message{Metadata: append(wire.AppendData(nil, wire.FlagCaller, id, 0), body(t, 1)...)}
	}
	handler := func(ctx context.Context, _ *Stream[int, int]) error { <-ctx.Done(); return nil }
	t.Run("ended", func(t *testing.T) {
		h := joinHostile(t, 1, handler)
		_, err := victimCall.Call(t.Context(), h.group[0], "worker1", 1)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return h.group[1].Metrics().ServedCalls == 0 }, time.Minute, time.Millisecond)
		c := h.group[0].peers.find("worker1").conn.Load()
		for _, id := range []uint64{0, 1, 7, math.MaxUint64} {
			for _, m := range []*pipe.Message{data(id), {Metadata: wire.AppendCredit(nil, wire.FlagCaller, id, 1)}, {Metadata: wire.AppendData(nil, 0, id, 0)}} {
				require.NoError(t, c.pipe.Write(t.Context(), m))
			}
		}
		_, err = victimCall.Call(t.Context(), h.group[0], "worker1", 1)
		require.NoError(t, err)
		require.Same(t, c, h.group[0].peers.find("worker1").conn.Load())
	})
	t.Run("not a stream", func(t *testing.T) {
		block := NewFunc[None, None]("test.block")
		begun := make(chan struct{}, 1)
		h := hostileGroup{lost: make(chan error, 10)}
		h.group = joinInternal(t, 2, func(rank int, c *Config) {
			if rank == 1 {
				c.Events = &Events{PeerLost: func(i PeerLostInfo) { h.lost <- i.Err }}
			}
			c.Funcs = Funcs{
				victimCall.Serve(func(_ context.Context, n int) (int, error) { return n, nil }),
				block.Serve(func(ctx context.Context, _ None) (None, error) {
					begun <- struct{}{}
					<-ctx.Done()
					return None{}, context.Cause(ctx)
				}),
			}
		})
		f := block.Go(t.Context(), h.group[0], "worker1", None{})
		<-begun
		c := h.group[0].peers.find("worker1").conn.Load()
		require.NoError(t, c.pipe.Write(t.Context(), data(c.calls.lastID.Load())))
		_, err := f.Wait(t.Context())
		h.requireRejected(t, err)
	})
	t.Run("caller that does not receive", func(t *testing.T) {
		h := joinHostile(t, 0, handler)
		s, err := victimSum.Open(t.Context(), h.group[0], "worker1")
		require.NoError(t, err)
		require.NoError(t, s.Send(1))
		var other *conn
		require.Eventually(t, func() bool { // it serves requests before it is that of the peer
			other = h.group[1].peers.find("worker0").conn.Load()
			return other != nil
		}, testwait.Limit, time.Millisecond)
		require.NoError(t, other.pipe.Write(t.Context(), &pipe.Message{Metadata: append(wire.AppendData(nil, 0, s.stream.id, 0), body(t, 1)...)}))
		_, err = s.CloseAndReceive()
		h.requireRejected(t, err)
	})
}

// A reply with a wrong number of data fails the stream.
func TestHostileReplyOfStream(t *testing.T) {
	for name, c := range map[string]struct {
		count []byte
		limit time.Duration
		kind  error
	}{
		"no number":            {[]byte{0xff}, testwait.Limit, ErrProtocol},
		"data that never come": {wire.AppendNumber(nil, 5), 100 * time.Millisecond, ErrTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			h := joinHostile(t, 0, func(ctx context.Context, s *Stream[int, int]) error {
				e := codec.NewEncoder(codec.NewRegistry(), codec.Limits{})
				e.Reset(wire.AppendReply(nil, KindReply, s.stream.id))
				e.SetHeader(wire.CountHeader, c.count)
				if err := e.Encode(&None{}); err != nil {
					return err
				}
				data, _, err := e.Finish()
				if err = errors.Join(err, s.stream.conn.pipe.Write(ctx, &pipe.Message{Metadata: data})); err == nil {
					<-ctx.Done() // no other reply may overtake this one
				}
				return err
			})
			var s *BidiStreamCall[int, int]
			err := ErrTimeout
			// On a busy machine a short time may pass before the stream is open.
			for limit := c.limit; errors.Is(err, ErrTimeout) && limit <= testwait.Limit; limit *= 2 {
				s, err = victimStream.Open(t.Context(), h.group[0], "worker1", WithTimeout(limit))
			}
			require.NoError(t, err)
			for _, err = range s.Receive() {
			}
			require.ErrorIs(t, err, c.kind)
			require.Zero(t, h.group[0].Metrics().PendingCalls)
		})
	}
}
