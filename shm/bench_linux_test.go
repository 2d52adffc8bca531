package shm

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// BenchmarkRoundTrip measures a frame and its answer, with the other end in this process or in
// another one.
func BenchmarkRoundTrip(b *testing.B) {
	for _, size := range []int{8, 4 << 10, 64 << 10} {
		for _, k := range []struct {
			name string
			opts []Option
		}{{"doorbells", nil}, {"tokens", []Option{triggers}}} {
			b.Run(fmt.Sprintf("one process/%s/%d", k.name, size), func(b *testing.B) {
				dialled, accepted := connect(b, New(k.opts...))
				go answer(accepted, size)
				ask(b, dialled, size)
			})
		}
		for _, peer := range []string{"echo", "echo by token"} {
			b.Run(fmt.Sprintf("two processes/%s/%d", peer, size), func(b *testing.B) {
				c, _ := acceptFrom(b, peer)
				ask(b, c, size)
			})
		}
	}
}

func answer(c transport.Conn, size int) {
	p := make([]byte, size)
	out, in := []transport.Frame{{p}}, [][]byte{p}
	for {
		if _, err := c.NextFrame(); err != nil {
			return
		}
		if c.ReadBody(in...) != nil || c.WriteFrames(out...) != nil {
			return
		}
	}
}

func ask(b *testing.B, c transport.Conn, size int) {
	p := make([]byte, size)
	out, in := []transport.Frame{{p}}, [][]byte{p}
	b.ReportAllocs()
	b.SetBytes(int64(size))
	for b.Loop() {
		require.NoError(b, c.WriteFrames(out...))
		_, err := c.NextFrame()
		require.NoError(b, err)
		require.NoError(b, c.ReadBody(in...))
	}
}
