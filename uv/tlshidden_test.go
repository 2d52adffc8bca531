package uv

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// testQuota is a quota without a limit.
type testQuota struct{ used int }

func (q *testQuota) Charge(n int) bool    { q.Add(n); return true }
func (q *testQuota) TryCharge(n int) bool { q.Add(n); return true }
func (q *testQuota) Add(n int)            { q.used += n }
func (q *testQuota) Release(n int)        { q.used -= n }

// TestUndecryptedBytesAreCharged checks that bytes that were read from the socket are charged to
// the quota until a read returns decrypted data.
func TestUndecryptedBytesAreCharged(t *testing.T) {
	q := &testQuota{}
	s := &socket{src: bytes.NewReader(append([]byte{byte(handshakeRecord), 3}, make([]byte, 40_000)...)), quota: q}
	for q.used < 40_002 {
		_, err := s.Read(make([]byte, 1<<10))
		require.NoError(t, err)
	}
	d := tlsReader{bytes.NewReader([]byte("data")), s}
	n, err := d.Read(make([]byte, 8))
	require.NoError(t, err)
	require.Equal(t, 4, n)
	require.Zero(t, q.used)
}
