package storetest

import (
	"fmt"
	"math"
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

var addCases = []testCase{
	{"Sums", addSums},
	{"KeepsText", addKeepsText},
	{"ToOther", addToOther},
	{"ByMany", addByMany},
}

var compareCases = []testCase{
	{"Creates", compareCreates},
	{"Swaps", compareSwaps},
	{"Missing", compareMissing},
	{"EmptyValue", compareEmptyValue},
	{"Same", compareSame},
	{"OneWins", compareOneWins},
}

func (f fixture) add(s store.Store, key string, delta, want int64) {
	f.Helper()
	got, err := s.Add(f.ctx, key, delta)
	require.NoError(f, err)
	require.Equal(f, want, got)
}

func addSums(f fixture) {
	f.add(f.a, "key", 5, 5)
	f.add(f.b, "key", -7, -2)
	f.add(f.a, "key", 0, -2)
	f.add(f.b, "zero", 0, 0)
	f.wantValue("zero", "0")
	f.add(f.a, "large", math.MaxInt64, math.MaxInt64)
	f.add(f.a, "small", math.MinInt64, math.MinInt64)
}

func addKeepsText(f fixture) {
	f.set(f.a, "key", "41")
	f.add(f.b, "key", 1, 42)
	f.wantValue("key", "42")
}

func addToOther(f fixture) {
	f.set(f.a, "text", "four")
	f.set(f.a, "empty", "")
	f.set(f.a, "larger", fmt.Sprint(int64(math.MaxInt64))+"0")
	keys, want := []string{"text", "empty", "larger"}, store.ErrDisconnected
	if !f.backend.RefusesByClosing {
		f.set(f.a, "large", fmt.Sprint(int64(math.MaxInt64)))
		keys, want = append(keys, "large"), store.ErrNotNumber
	}
	for _, key := range keys {
		n, err := f.b.Add(f.ctx, key, 1)
		require.ErrorIs(f, err, want, key)
		require.Zero(f, n, key)
	}
	f.wantValue("text", "four")
}

func addByMany(f fixture) {
	const workers, each = 8, 25
	var mu sync.Mutex
	seen := map[int64]bool{}
	var done []<-chan error
	for i := range workers {
		done = append(done, testwait.Start(func() error {
			for range each {
				n, err := []store.Store{f.a, f.b}[i%2].Add(f.ctx, "key", 1)
				if err != nil {
					return err
				}
				mu.Lock()
				seen[n] = true
				mu.Unlock()
			}
			return nil
		}))
	}
	for _, d := range done {
		require.NoError(f, testwait.Finish(f, d))
	}
	require.Len(f, seen, workers*each)
	f.wantValue("key", fmt.Sprint(workers*each))
}

func (f fixture) compare(s store.Store, key, expected, desired, want string) {
	f.Helper()
	got, err := s.CompareAndSet(f.ctx, key, []byte(expected), []byte(desired))
	require.NoError(f, err)
	require.Equal(f, want, string(got))
	f.wantValue(key, want)
}

func compareCreates(f fixture) {
	f.compare(f.a, "key", "", "one", "one")
	f.compare(f.b, "key", "", "two", "one")
}

func compareSwaps(f fixture) {
	f.set(f.a, "key", "one")
	f.compare(f.b, "key", "one", "two", "two")
	f.compare(f.a, "key", "one", "three", "two")
	f.compare(f.a, "key", "two", "", "")
}

func compareMissing(f fixture) {
	for _, desired := range []string{"two", "one", ""} {
		got, err := f.a.CompareAndSet(f.ctx, "key", []byte("one"), []byte(desired))
		require.ErrorIs(f, err, store.ErrNotFound)
		require.Nil(f, got)
		f.wantMissing("key")
	}
}

func compareEmptyValue(f fixture) {
	f.set(f.a, "key", "")
	f.compare(f.b, "key", "one", "two", "")
	f.compare(f.a, "key", "", "one", "one")
	f.compare(f.a, "other", "", "", "")
}

func compareSame(f fixture) {
	f.set(f.a, "key", "one")
	f.compare(f.b, "key", "one", "one", "one")
	f.compare(f.b, "key", "two", "two", "one")
}

func compareOneWins(f fixture) {
	const workers = 8
	var done []<-chan string
	for i := range workers {
		done = append(done, testwait.Start(func() string {
			now, err := []store.Store{f.a, f.b}[i%2].CompareAndSet(f.ctx, "key", nil, []byte{byte('a' + i)})
			return fmt.Sprint(string(now), err)
		}))
	}
	winner := testwait.Finish(f, done[0])
	require.Regexp(f, `^[a-h]<nil>$`, winner)
	for _, d := range done[1:] {
		require.Equal(f, winner, testwait.Finish(f, d))
	}
	f.wantValue("key", winner[:1])
}
