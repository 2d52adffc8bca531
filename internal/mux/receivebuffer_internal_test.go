package mux

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// limited is a quota of which charges without waiting may be refused.
type limited struct {
	transport.Quota
	used, size int
}

func (q *limited) TryCharge(n int) bool {
	if q.used+n > q.size {
		return false
	}
	q.used += n
	return true
}

func (q *limited) Release(n int) { q.used -= n }

// A receiveBuffer returns the bytes that were added, in order, also if they are taken while others are
// read to its memory, and holds no more of the quota than they need.
func TestReceiveBuffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := &limited{size: 1 << rapid.IntRange(10, 20).Draw(t, "quota")}
		b := &receiveBuffer{pool: &segmentPool{}, quota: q, changed: make(chan struct{}, 1)}
		var want []byte // that were added and not taken
		next := byte(0)
		var memory []byte // reserved
		dropped := false
		add := func(n int) {
			for i := range n {
				memory[i] = next
				if !dropped {
					want = append(want, next)
				}
				next++
			}
			b.filled(n)
			memory = nil
		}
		t.Repeat(map[string]func(*rapid.T){
			"reserve": func(t *rapid.T) {
				if memory != nil {
					return
				}
				n := rapid.IntRange(1, maxBody).Draw(t, "n")
				p, err := b.reserve(n, false)
				switch {
				case dropped:
					require.NoError(t, err)
					require.Nil(t, p)
				case err != nil:
					require.Equal(t, errMustWait, err)
					require.Greater(t, q.used+segmentSize(n), q.size)
				default:
					require.NotEmpty(t, p)
					memory = p
				}
			},
			"fill": func(t *rapid.T) {
				if memory != nil {
					add(rapid.IntRange(0, len(memory)).Draw(t, "n"))
				}
			},
			"take": func(t *rapid.T) {
				p := make([]byte, rapid.IntRange(1, 2*maxBody).Draw(t, "n"))
				require.Equal(t, len(want) > 0, b.readable())
				n, err := b.take(p)
				require.NoError(t, err)
				require.Equal(t, min(len(p), len(want)), n)
				require.Equal(t, append([]byte{}, want[:n]...), p[:n])
				want = want[n:]
			},
			"drop": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "rarely") == 0 {
					b.drop()
					dropped, want = true, nil
				}
			},
			"": func(t *rapid.T) {
				if memory == nil && len(want) == 0 {
					require.Zero(t, q.used)
				}
			},
		})
		if memory != nil {
			add(0)
		}
		b.end(io.EOF)
		for len(want) > 0 {
			n, err := b.take(make([]byte, len(want)))
			require.NoError(t, err)
			want = want[n:]
		}
		_, err := b.take(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		require.Zero(t, q.used)
	})
}
