package chanmutex_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/chanmutex"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestLockOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := chanmutex.New()
		m.Lock()
		var order []int
		for i := range 5 {
			go func() {
				m.Lock()
				defer m.Unlock()
				order = append(order, i)
			}()
			synctest.Wait()
		}
		require.Empty(t, order)
		m.Unlock()
		synctest.Wait()
		require.Equal(t, []int{0, 1, 2, 3, 4}, order)
	})
}

// Virtual time advances while a goroutine is blocked in Lock.
func TestVirtualTimeAdvances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := chanmutex.New()
		m.Lock()
		time.AfterFunc(time.Hour, m.Unlock)
		began := time.Now()
		m.Lock()
		require.Equal(t, time.Hour, time.Since(began))
	})
}
