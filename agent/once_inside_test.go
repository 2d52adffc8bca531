package agent

import (
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// However many keys a member uses, those of each sort that are known are bounded, and no
// key is admitted twice.
func TestMemoryOfKeysIsBounded(t *testing.T) {
	limits := Limits{Remembered: 128}.withDefaults()
	r := &Request{conn: &conn{agent: &Agent{limits: limits}}, begun: time.Now()}
	var keys evictedKeys
	use := func(key string) error {
		own := &run{key: runKey{name: "test.once", key: key}, number: keyNumber(key), last: r.begun, evicting: evictedForCount}
		err := keys.admit(own.key, own.number, r)
		if err == nil {
			keys.add(own, &limits)
		}
		return err
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	most := limits.keys()
	for i := range 3 * most {
		require.NoError(t, use("r"+strconv.FormatInt(int64(i+1), 36)))
		if err := use("u" + strconv.Itoa(i)); i < most {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, ErrOverloaded)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	require.Len(t, keys.sums, 2*most)
	grown := int(after.HeapAlloc) - int(before.HeapAlloc)
	t.Logf("%d bytes for each of %d keys", grown/(2*most), 2*most)
	require.Less(t, grown, 2*most*100)

	for i := range 3 * most {
		require.ErrorIs(t, use("r"+strconv.FormatInt(int64(i+1), 36)), ErrEvicted)
	}
	for i := range most {
		require.ErrorIs(t, use("u"+strconv.Itoa(i)), ErrEvicted)
	}

	r.begun = r.begun.Add(limits.RetryWindow)
	require.NoError(t, use("u0"), "the window is over")
	require.Len(t, keys.sums, most+1)
}
