package pipe_test

import (
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestUnusedSessionCloses checks that a session ends some time after its last Conn was closed, at
// both ends, and not while it has a Conn or before.
func TestUnusedSessionCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := listenConns(t, transports()[0], pipe.Limits{})
		elapse := func(d time.Duration) { <-time.NewTimer(d).C }
		sessions := func() [2]int {
			synctest.Wait()
			return [2]int{e.client.Stats().ConnSessionsOpen, e.server.Stats().ConnSessionsOpen}
		}
		d, a := e.dial(t)
		elapse(time.Hour)
		require.Equal(t, [2]int{1, 1}, sessions())
		require.NoError(t, d.Close())
		require.NoError(t, a.Close())
		elapse(9 * time.Second)
		require.Equal(t, [2]int{1, 1}, sessions())
		d, a = e.dial(t) // the same session
		require.EqualValues(t, 1, e.server.Stats().HandshakesDone)
		elapse(time.Hour)
		require.NoError(t, d.Close())
		require.NoError(t, a.Close())
		elapse(11 * time.Second)
		require.Equal(t, [2]int{0, 0}, sessions())
		d, a = e.dial(t)
		require.EqualValues(t, 2, e.server.Stats().HandshakesDone)
		require.NoError(t, e.listener.Close())
		require.Equal(t, [2]int{1, 1}, sessions())
		require.NoError(t, a.Close()) // the listener is closed, so the session ends with its last Conn
		require.Equal(t, [2]int{1, 0}, sessions())
		require.NoError(t, d.Close())
		require.Equal(t, [2]int{0, 0}, sessions())
	})
}

// resident returns the memory of this process in bytes, shared memory included, after a collection.
func resident(t *testing.T) int {
	runtime.GC()
	runtime.GC()
	var heap runtime.MemStats
	runtime.ReadMemStats(&heap)
	sum := int(heap.HeapInuse + heap.StackInuse)
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return sum
	}
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); fields[0] == "RssShmem:" {
			kib, err := strconv.Atoi(fields[1])
			require.NoError(t, err)
			sum += kib << 10
		}
	}
	return sum
}

// TestIdleConnsMemory checks that each of 1000 idle Conns, over which a byte went both ways, takes
// at most 32 KiB at both ends together, and no goroutine.
func TestIdleConnsMemory(t *testing.T) {
	const n, limit = 1000, 32 << 10
	for _, over := range transports() {
		t.Run(over.name, func(t *testing.T) {
			leakcheck.Check(t)
			e := listenConns(t, over, pipe.Limits{})
			e.dial(t)
			before, goroutines := resident(t), runtime.NumGoroutine()
			for range n {
				d, a := e.dial(t)
				for _, way := range [][2]*pipe.Conn{{d, a}, {a, d}} {
					_, err := way[0].Write([]byte("x"))
					require.NoError(t, err)
					_, err = io.ReadFull(way[1], make([]byte, 1))
					require.NoError(t, err)
				}
			}
			each := (resident(t) - before) / n
			t.Logf("%d bytes for each Conn", each)
			require.Less(t, each, limit)
			require.Less(t, runtime.NumGoroutine()-goroutines, 20)
			require.Equal(t, 1, e.server.Stats().ConnSessionsOpen)
			require.Equal(t, n+1, e.server.Stats().ConnsOpen)
		})
	}
}
