package simnet_test

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/simnet"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// times reads frames from c until io.EOF, and returns how long after the call each frame and the
// end arrived. It is exact in a synctest bubble, whose clock advances only while all goroutines are
// blocked.
func times(t *testing.T, c transport.Conn) []time.Duration {
	t.Helper()
	began := time.Now()
	var out []time.Duration
	for {
		_, err := readFrame(c)
		out = append(out, time.Since(began))
		if err != nil {
			require.Equal(t, io.EOF, err)
			return out
		}
	}
}

// arriving writes frames of these sizes, all at once, to a new link with these rules, and closes
// the writing end. It returns how long after the writes each frame and the end of the stream
// arrive.
func arriving(t *testing.T, sizes []int, rules ...simnet.Rule) (out []time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w, r := connect(t, over(rules...))
		for _, n := range sizes {
			require.NoError(t, w.WriteFrames(transport.Frame{make([]byte, n)}))
		}
		require.NoError(t, w.CloseWrite())
		out = times(t, r)
	})
	return out
}

func TestSlowLinks(t *testing.T) {
	const ms = time.Millisecond
	for _, tc := range []struct {
		name  string
		rules []simnet.Rule
		want  []time.Duration
	}{
		{"no rules", nil, []time.Duration{0, 0, 0}},
		{"delay", []simnet.Rule{simnet.Delay(30 * ms)}, []time.Duration{30 * ms, 30 * ms, 30 * ms}},
		{"rate", []simnet.Rule{simnet.Rate(1000)}, []time.Duration{100 * ms, 200 * ms, 200 * ms}},
		{
			"both", []simnet.Rule{simnet.Rate(1000), simnet.Delay(30 * ms)},
			[]time.Duration{130 * ms, 230 * ms, 230 * ms},
		},
		{
			"another link", []simnet.Rule{simnet.OnLink(1, simnet.Delay(30*ms))},
			[]time.Duration{0, 0, 0},
		},
		{
			"this link", []simnet.Rule{simnet.OnLink(0, simnet.Delay(30*ms))},
			[]time.Duration{30 * ms, 30 * ms, 30 * ms},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.Equal(t, tc.want, arriving(t, []int{92, 92}, tc.rules...))
		})
	}
}

func TestTheEndIsSlowToo(t *testing.T) {
	require.Equal(t, []time.Duration{time.Second}, arriving(t, nil, simnet.Delay(time.Second)))
}

func TestDelayIsFromTheWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := connect(t, over(simnet.Delay(time.Second)))
		require.NoError(t, w.WriteFrames(text("a")))
		time.Sleep(600 * time.Millisecond)
		require.NoError(t, w.WriteFrames(text("b")))
		require.NoError(t, w.Close())
		require.Equal(t, []time.Duration{400 * time.Millisecond, time.Second, time.Second}, times(t, r))
	})
}

func TestJitterDependsOnTheSeed(t *testing.T) {
	sizes := make([]int, 50)
	one := arriving(t, sizes, simnet.Jitter(1, time.Second))
	require.Equal(t, one, arriving(t, sizes, simnet.Jitter(1, time.Second)))
	require.NotEqual(t, one, arriving(t, sizes, simnet.Jitter(2, time.Second)))
	require.IsNonDecreasing(t, one)
	require.Less(t, one[len(one)-1], time.Second)
	require.NotZero(t, one[0])
}

func TestCloseWhileAFrameIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := connect(t, over(simnet.Delay(time.Hour)))
		require.NoError(t, w.WriteFrames(text("late")))
		got := collect(r)
		synctest.Wait()
		began := time.Now()
		require.NoError(t, r.Close())
		synctest.Wait()
		require.ErrorIs(t, got.err, transport.ErrClosed)
		require.Zero(t, time.Since(began))
	})
}
