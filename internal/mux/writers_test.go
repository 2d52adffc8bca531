package mux_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/mux"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// partialSocket accepts nothing, everything, or some bytes at once without blocking.
type partialSocket struct{ socket }

func (s partialSocket) TryWrite(pieces ...[]byte) (int, error) {
	p := bytes.Join(pieces, nil)
	switch rand.IntN(3) {
	case 0:
		return 0, nil
	case 1:
		return s.Write(p)
	}
	return s.Write(p[:rand.IntN(len(p)+1)])
}

// counted is a quota without a limit.
type counted struct{ bytes atomic.Int64 }

func (q *counted) Charge(n int) bool    { q.Add(n); return true }
func (q *counted) TryCharge(n int) bool { q.Add(n); return true }
func (q *counted) Add(n int)            { q.bytes.Add(int64(n)) }
func (q *counted) Release(n int)        { q.bytes.Add(-int64(n)) }

// writeAll writes p to s by calls of TryWrite and Write with pieces of random sizes, whose memory it
// overwrites after each call.
func writeAll(s transport.Stream, p []byte) error {
	for len(p) > 0 {
		most := []int{10, 5000, 200_000}[rand.IntN(3)]
		piece := bytes.Clone(p[:min(1+rand.IntN(most), len(p))])
		cut, n := rand.IntN(len(piece)+1), 0
		var err error
		if rand.IntN(2) == 0 {
			n, err = s.TryWrite(piece[:cut], nil, piece[cut:])
		}
		if err == nil && n < len(piece) {
			_, err = s.Write(piece[n:])
		}
		clear(piece) // the race detector reports a later use
		if err != nil {
			return err
		}
		p = p[len(piece):]
	}
	return nil
}

// TestWriters checks that the bytes of each stream arrive in order, and that the quota gets back what
// was charged, if several goroutines write to a connection that accepts any part of a message at once.
func TestWriters(t *testing.T) {
	d, a := tcp(t)
	quota := &counted{}
	c, err := mux.New(partialSocket{d}, transport.SessionConfig{Client: true, Quota: quota})
	require.NoError(t, err)
	s, err := mux.New(partialSocket{a}, transport.SessionConfig{MaxStreams: 4})
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	var all sync.WaitGroup
	for k := range 4 {
		o, accepted := streams(t, c, s)
		sent := make([]byte, 1<<20)
		for i := range sent {
			sent[i] = byte(i/7 + k)
		}
		all.Go(func() {
			if err := writeAll(o, sent); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			got := make([]byte, len(sent))
			if _, err := io.ReadFull(accepted, got); err != nil {
				t.Error(err)
			}
			if !bytes.Equal(sent, got) {
				t.Errorf("stream %d has other bytes", k)
			}
		})
	}
	all.Wait()
	require.NoError(t, c.Close())
	require.Zero(t, quota.bytes.Load())
}
