package bench

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// BenchmarkIdlePipes opens 1000 pipes to a second process and looks at both for
// 10 seconds: pipes that never carried anything, and pipes that carried a tensor
// of 1 MiB each.
func BenchmarkIdlePipes(b *testing.B) {
	for _, path := range pathSpecs() {
		for _, size := range []int{0, 1 << 20} {
			b.Run(fmt.Sprintf("%s/carried=%d", label(path), size), func(b *testing.B) {
				s := path
				s.Size = size
				idlePipes(b, s)
			})
		}
	}
}

func idlePipes(b *testing.B, s Spec) {
	for b.Loop() {
		cost, err := Go{Child: child(b)}.Idle(b.Context(), s, 1000, 10*time.Second)
		require.NoError(b, err)
		for name, end := range map[string]EndCost{"client": cost.Client, "server": cost.Server} {
			b.ReportMetric(100*end.Core, name+"-core-%")
			b.ReportMetric(float64(end.BytesPerPipe)/1024, name+"-KiB/pipe")
			b.ReportMetric(end.DescriptorsPerPipe, name+"-fds/pipe")
		}
	}
	b.ReportMetric(0, "ns/op")
}

// A native pipe has one connection, and a second one once it has carried a large
// tensor.
func TestIdle(t *testing.T) {
	for _, c := range []struct{ size, connections int }{{0, 1}, {8, 1}, {200_000, 2}} {
		s := uvBasic(pipe.DialectNative)
		s.Size = c.size
		cost, err := Go{Child: child(t)}.Idle(t.Context(), s, 20, time.Millisecond)
		require.NoError(t, err)
		for _, end := range []EndCost{cost.Client, cost.Server} {
			if runtime.GOOS == "linux" {
				require.Equal(t, float64(c.connections), end.DescriptorsPerPipe, "after %d bytes", c.size)
				require.Less(t, end.BytesPerPipe, 10<<20)
			}
			require.GreaterOrEqual(t, end.Core, 0.0)
		}
	}
}
