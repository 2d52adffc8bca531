package ringnet_test

import (
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkStream: round trips with another process, and one way to it.
func BenchmarkStream(b *testing.B) {
	for _, size := range []int{8, 4 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("trip/%dB", size), func(b *testing.B) {
			s, _ := startPeer(b, fmt.Sprint("echo ", size))
			p := make([]byte, size)
			for b.Loop() {
				_, err := s.Write(p)
				require.NoError(b, err)
				_, err = io.ReadFull(s, p)
				require.NoError(b, err)
			}
		})
	}
	b.Run("oneway/1MiB", func(b *testing.B) {
		s, _ := startPeer(b, fmt.Sprint("sink ", 1<<20))
		b.SetBytes(1 << 20)
		p := make([]byte, 16<<20)
		for i := 0; b.Loop(); i++ {
			_, err := s.Write(p[i%16<<20:][:1<<20])
			require.NoError(b, err)
		}
	})
}
