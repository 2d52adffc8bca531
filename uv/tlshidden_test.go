package uv

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// tally is a quota without bound.
type tally struct{ used int }

func (q *tally) Charge(n int) bool { q.Add(n); return true }
func (q *tally) Add(n int)         { q.used += n }
func (q *tally) Release(n int)     { q.used -= n }

// Bytes of TLS of which none is data may be kept by crypto/tls, and count until data comes.
func TestHiddenBytesCount(t *testing.T) {
	q := &tally{}
	s := &socket{src: bytes.NewReader(append([]byte{byte(handshakeRecord), 3}, make([]byte, 40_000)...)), quota: q}
	for q.used < 40_002 {
		_, err := s.Read(make([]byte, 1<<10))
		require.NoError(t, err)
	}
	d := decrypted{bytes.NewReader([]byte("data")), s}
	n, err := d.Read(make([]byte, 8))
	require.NoError(t, err)
	require.Equal(t, 4, n)
	require.Zero(t, q.used)
}
