package mux_test

import (
	"io"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// testQuota is a quota of size bytes, without eviction.
type testQuota struct {
	mu      sync.Mutex
	size    int
	used    int
	revoked bool
	freed   chan struct{} // non-nil if a charge waits; closed when something has changed
}

func (q *testQuota) Charge(n int) bool {
	for {
		q.mu.Lock()
		if q.revoked || q.used+n <= q.size {
			defer q.mu.Unlock()
			if !q.revoked {
				q.used += n
			}
			return !q.revoked
		}
		if q.freed == nil {
			q.freed = make(chan struct{})
		}
		freed := q.freed
		q.mu.Unlock()
		<-freed
	}
}

func (q *testQuota) TryCharge(n int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.revoked || q.used+n > q.size {
		return false
	}
	q.used += n
	return true
}

func (q *testQuota) Add(n int) { q.Release(-n) }

func (q *testQuota) Release(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.used -= n
	q.change()
}

func (q *testQuota) revoke() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.revoked = true
	q.change()
}

func (q *testQuota) change() {
	if q.freed != nil {
		close(q.freed)
		q.freed = nil
	}
}

func (q *testQuota) charged() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.used
}

// Unread bytes are charged before memory is allocated for them; small messages share it. A session
// that waits for its quota does not read its connection.
func TestQuotaStopsReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &testQuota{size: 100_000}
		s, w := newWriter(t, transport.SessionConfig{MaxStreams: 4, Quota: q})
		defer s.Close()
		for range 1000 {
			w.write(dataFrame(0, 1, "x"))
		}
		synctest.Wait()
		require.Equal(t, 1<<10, q.charged())
		w.drain(1000)
		require.Zero(t, q.charged())

		for range 2 {
			w.write(dataFrame(0, 1, string(make([]byte, 60_000))))
		}
		synctest.Wait()
		require.Equal(t, 1<<16, q.charged(), "a power of two")
		w.drain(1 << 16)
		synctest.Wait()
		require.Equal(t, 1<<16, q.charged(), "the rest has come")
		w.drain(120_000 - 1<<16)
		require.Zero(t, q.charged())
	})
}

// The charge for unread bytes of a stream is released when the stream ends.
func TestQuotaOfEndedStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &testQuota{size: 1 << 20}
		s, w := newWriter(t, transport.SessionConfig{MaxStreams: 4, Quota: q})
		w.write(dataFrame(0, 1, "unread"))
		synctest.Wait()
		require.Equal(t, 1<<10, q.charged())
		go io.Copy(io.Discard, w.conn)
		require.NoError(t, w.read.Close())
		synctest.Wait()
		require.Zero(t, q.charged())
		w.write(dataFrame(0, 1, "for nobody"))
		synctest.Wait()
		require.Zero(t, q.charged())

		w.write(message(kindCredit, flagSyn, 3, 0, ""))
		w.write(dataFrame(0, 3, "unread too"))
		synctest.Wait()
		require.Equal(t, 1<<10, q.charged())
		require.NoError(t, s.Close())
		require.Zero(t, q.charged())
	})
}

// Bytes that this end writes are charged until the connection accepts them.
func TestQuotaOfUnwrittenBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &testQuota{size: 1 << 20}
		s, w := newWriter(t, transport.SessionConfig{MaxStreams: 4, Quota: q})
		defer s.Close()
		synctest.Wait()
		require.Zero(t, q.charged())
		st := w.read
		n, err := st.TryWrite(make([]byte, 10_000))
		require.NoError(t, err)
		require.Equal(t, 10_000, n)
		synctest.Wait()
		require.Zero(t, q.charged(), "it has left")
	})
}

// The charge for bytes that can no longer be written is released when a write fails, although the
// session is still open.
func TestQuotaOfFailedWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &testQuota{size: 1 << 20}
		s, peer := rawSession(t, transport.SessionConfig{Client: true, Quota: q}, mem.WithBuffer(100))
		st, err := s.Open()
		require.NoError(t, err)
		synctest.Wait()
		for range 2 {
			n, err := st.TryWrite(make([]byte, 10_000))
			require.NoError(t, err)
			require.Equal(t, 10_000, n)
			synctest.Wait()
		}
		require.Equal(t, 2*(12+10_000), q.charged(), "in part being written, in part queued")
		require.NoError(t, peer.Close())
		synctest.Wait()
		require.Zero(t, q.charged())
		require.NoError(t, s.Close())
		require.Zero(t, q.charged())
	})
}

// A session whose quota is revoked reads nothing more and waits to be closed.
func TestQuotaRevoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &testQuota{size: 1 << 10}
		s, w := newWriter(t, transport.SessionConfig{MaxStreams: 4, Quota: q})
		w.write(dataFrame(0, 1, "first"))
		w.write(dataFrame(0, 1, string(make([]byte, 1<<10))))
		synctest.Wait()
		q.revoke()
		synctest.Wait()
		require.NoError(t, s.Err())
		p := make([]byte, 100)
		n, err := w.read.Read(p)
		require.NoError(t, err)
		require.Equal(t, "first", string(p[:min(n, len("first"))]))
		go io.Copy(io.Discard, w.conn)
		require.NoError(t, s.Close())
		require.Zero(t, q.charged())
	})
}
