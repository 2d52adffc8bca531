package turn_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/turn"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestOneAtATimeInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := turn.New()
		at.Take()
		var order []int
		for i := range 5 {
			go func() {
				at.Take()
				defer at.Give()
				order = append(order, i)
			}()
			synctest.Wait()
		}
		require.Empty(t, order)
		at.Give()
		synctest.Wait()
		require.Equal(t, []int{0, 1, 2, 3, 4}, order)
	})
}

// What holds the turn may wait for the time to pass.
func TestTimePassesForHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := turn.New()
		at.Take()
		time.AfterFunc(time.Hour, at.Give)
		began := time.Now()
		at.Take()
		require.Equal(t, time.Hour, time.Since(began))
	})
}
