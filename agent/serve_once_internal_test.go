package agent

import (
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
)

// keyUser uses keys at the time that its request has.
type keyUser struct {
	keys    usedKeys
	limits  Limits
	request *Request
}

func newKeyUser(l Limits) *keyUser {
	u := &keyUser{limits: l.withDefaults()}
	u.request = &Request{conn: &conn{agent: &Agent{limits: u.limits}}, begun: time.Now()}
	return u
}

// pass advances the time that u uses by d, without waiting.
func (u *keyUser) pass(d time.Duration) { u.request.begun = u.request.begun.Add(d) }

// use admits the encoded key text as for a run of a function, and records that the reply is not
// kept. It returns the error of usedKeys.admit if the key is not admitted, or that of decoding the
// key.
func (u *keyUser) use(text string) error {
	key, number, ended, err := wire.ParseKey([]byte(text))
	if err != nil {
		return err
	}
	u.keys.expire(u.request.begun, u.limits.RetryWindow)
	u.keys.drop(ended)
	id := u.keys.identify(onceKey{name: "test.once", key: key}, number)
	if err := u.keys.admit(id, 0, u.request); err != nil {
		return err
	}
	u.keys.add(id, evictedForCount, &u.limits)
	return nil
}

// However many keys a member uses, the memory for them stays within Limits.KeyBytes, and no key is
// admitted twice.
func TestMemoryOfKeysIsBounded(t *testing.T) {
	const limit, most = 1 << 20, 1 << 20 / keyBytes
	numbered := func(i int) string { return string(wire.AppendKey(nil, uint64(i+1), 0)) }
	named := func(i int) string { return "u" + strconv.Itoa(i) }
	for name, c := range map[string]struct {
		key     func(int) string
		bounded bool
	}{"numbered": {numbered, false}, "of the application": {named, true}} {
		t.Run(name, func(t *testing.T) {
			u := newKeyUser(Limits{KeyBytes: limit})
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			for i := range 3 * most {
				if err := u.use(c.key(i)); i >= most && c.bounded {
					require.ErrorIs(t, err, ErrOverloaded)
				} else {
					require.NoError(t, err)
				}
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			require.Equal(t, most, u.keys.count())
			grown := int(after.HeapAlloc) - int(before.HeapAlloc)
			t.Logf("%d bytes for each of %d keys", grown/most, most)
			require.Less(t, grown, limit)
			for i := range most {
				require.ErrorIs(t, u.use(c.key(i)), ErrEvicted)
			}
		})
	}

	u := newKeyUser(Limits{KeyBytes: limit})
	for i := range 2 * most {
		require.NoError(t, u.use(numbered(i)))
	}
	for i := range most {
		require.NoError(t, u.use(named(i)), "keys of the application replace numbered ones")
	}
	require.Equal(t, most, u.keys.count())
	require.ErrorIs(t, u.use(numbered(2*most-1)), ErrEvicted)
	u.pass(u.limits.RetryWindow * 3 / 2)
	require.NoError(t, u.use(named(0)), "the window is over")
	require.Equal(t, 1, u.keys.count())
}

// The keys of calls that have ended are dropped at once and not admitted again.
func TestKeysOfEndedCallsAreDropped(t *testing.T) {
	u := newKeyUser(Limits{})
	for i := uint64(1); i <= 1000; i++ {
		require.NoError(t, u.use(string(wire.AppendKey(nil, i, 0))))
	}
	require.Equal(t, 1000, u.keys.count())
	require.NoError(t, u.use(string(wire.AppendKey(nil, 2000, 990))))
	require.Equal(t, 11, u.keys.count())
	require.ErrorIs(t, u.use(string(wire.AppendKey(nil, 990, 0))), ErrEvicted)
	require.NoError(t, u.use(string(wire.AppendKey(nil, 1500, 990))), "its call has not ended")

	before := u.keys.order.Len()
	for range 10 { // a hostile caller gives one number to runs of several functions
		u.keys.add(keyID{number: 3000}, evictedForCount, &u.limits)
	}
	require.Equal(t, before+1, u.keys.order.Len())
}

// A key of the application is remembered for Limits.RetryWindow after its last use, whatever other
// keys are used, and is dropped at most half of that time later.
func TestKeysExpire(t *testing.T) {
	u := newKeyUser(Limits{RetryWindow: time.Minute})
	require.NoError(t, u.use("uagain"))
	require.NoError(t, u.use("uonce"))
	for range 10 {
		u.pass(59 * time.Second)
		require.ErrorIs(t, u.use("uagain"), ErrEvicted)
	}
	require.Equal(t, 1, u.keys.count(), "the other one is dropped")
	require.NoError(t, u.use("uonce"))
	u.pass(90 * time.Second)
	require.NoError(t, u.use("uagain"))
	require.Equal(t, 1, u.keys.count())
}

// Keys expire also if their caller only repeats calls whose replies are kept.
func TestKeysExpireWithRepeatsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := Limits{}.withDefaults()
		r := &Request{conn: &conn{agent: &Agent{limits: limits}}, key: "ukept", begun: time.Now()}
		var m onceCache
		launch, err := m.start(r)
		require.NoError(t, err)
		require.True(t, launch)
		m.add(r.once, &keptReply{}, &limits)
		r.once.finished = true
		m.evict(&onceRun{id: m.used.identify(onceKey{key: "uother"}, 0)}, evictedForBytes, &limits)
		require.Equal(t, 1, m.used.count())

		<-time.NewTimer(limits.RetryWindow * 3 / 2).C
		launch, err = m.start(r)
		require.NoError(t, err)
		require.True(t, launch)
		require.Equal(t, repeatTask{r.once}, r.task)
		require.Zero(t, m.used.count())
	})
}

// With the default limits a caller can make 10,000 calls a second with new keys for any time. The
// test makes a hundredth of the calls with a hundredth of the memory.
func TestDefaultRateOfKeys(t *testing.T) {
	const rate, part = 10_000, 100
	u := newKeyUser(Limits{KeyBytes: Limits{}.withDefaults().KeyBytes / part})
	for i := range rate / part * int(10*time.Minute/time.Second) {
		require.NoError(t, u.use("u"+strconv.Itoa(i)), "call %d", i)
		u.pass(time.Second * part / rate)
	}
	require.LessOrEqual(t, u.keys.count()*keyBytes, u.limits.KeyBytes)
}

// retryTracker counts a call as ended only once all calls before it have ended as well, and puts
// that number into the keys.
func TestRetriedCallsEnd(t *testing.T) {
	var calls retryTracker
	a, b, c := calls.begin(), calls.begin(), calls.begin()
	require.Equal(t, "r3.0", string(calls.appendKey(nil, c)))
	calls.end(b)
	require.Equal(t, "r3.0", string(calls.appendKey(nil, c)))
	calls.end(a)
	require.Equal(t, "r3.2", string(calls.appendKey(nil, c)))
	calls.end(c)
	require.Equal(t, "r4.3", string(calls.appendKey(nil, calls.begin())))
	require.Len(t, calls.open, 1)
}
