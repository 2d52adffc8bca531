package storetest

import (
	"bytes"
	"fmt"
	"math/rand/v2"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
)

var valueCases = []testCase{
	{"SetAndGet", setAndGet},
	{"AnyBytes", anyBytes},
	{"EmptyIsNotMissing", emptyIsNotMissing},
	{"Ownership", ownership},
	{"Delete", deletes},
	{"Limits", limits},
	{"ErrorsNameTheKey", errorsNameTheKey},
	{"LikeAMap", likeAMap},
}

func setAndGet(f fixture) {
	f.wantMissing("key")
	f.set(f.a, "key", "one")
	f.wantValue("key", "one")
	f.set(f.b, "key", "two")
	f.wantValue("key", "two")
	f.wantMissing("other")
}

func anyBytes(f fixture) {
	large := bytes.Repeat([]byte("tensor"), 200_000)
	for i, key := range []string{"", "/", "a/b//c", "\x00\xff", "käse", string(bytes.Repeat([]byte("k"), 1000))} {
		value := string(large[i:]) + key
		f.set(f.a, key, value)
		f.wantValue(key, value)
	}
}

func emptyIsNotMissing(f fixture) {
	require.NoError(f, f.a.Set(f.ctx, "key", nil))
	f.wantValue("key", "")
	got, err := f.b.Get(f.ctx, "key")
	require.NoError(f, err)
	require.NotNil(f, got)
	require.NoError(f, f.b.Wait(f.ctx, "key"))
}

func ownership(f fixture) {
	value := []byte("value")
	require.NoError(f, f.a.Set(f.ctx, "set", value))
	now, err := f.a.CompareAndSet(f.ctx, "cas", nil, value)
	require.NoError(f, err)
	clear(value)
	clear(now)
	got, err := f.a.Get(f.ctx, "set")
	require.NoError(f, err)
	clear(got)
	f.wantValue("set", "value")
	f.wantValue("cas", "value")
}

func deletes(f fixture) {
	f.set(f.a, "key", "one")
	for _, want := range []bool{true, false} {
		existed, err := f.b.Delete(f.ctx, "key")
		require.NoError(f, err)
		require.Equal(f, want, existed)
		f.wantMissing("key")
	}
	f.set(f.b, "key", "two")
	f.wantValue("key", "two")
}

func limits(f fixture) {
	key := string(make([]byte, 1<<20))
	value := make([]byte, 9<<20)
	require.ErrorIs(f, f.a.Set(f.ctx, key, nil), store.ErrLimit)
	require.ErrorIs(f, f.a.Set(f.ctx, "key", value), store.ErrLimit)
	require.ErrorIs(f, f.a.Wait(f.ctx, "key", key), store.ErrLimit)
	require.ErrorIs(f, f.a.Wait(f.ctx, make([]string, 1<<20)...), store.ErrLimit)
	n, err := f.a.Add(f.ctx, key, 1)
	require.ErrorIs(f, err, store.ErrLimit)
	require.Zero(f, n)
	now, err := f.a.CompareAndSet(f.ctx, "key", nil, value)
	require.ErrorIs(f, err, store.ErrLimit)
	require.Nil(f, now)
	f.wantMissing("key")
	f.set(f.a, "key", "one")
	now, err = f.a.CompareAndSet(f.ctx, "key", []byte("one"), value)
	require.ErrorIs(f, err, store.ErrLimit)
	require.Nil(f, now)
	f.wantValue("key", "one")
	now, err = f.a.CompareAndSet(f.ctx, "other", []byte("one"), nil)
	require.ErrorIs(f, err, store.ErrNotFound)
	require.Nil(f, now)
}

func errorsNameTheKey(f fixture) {
	_, err := f.a.Get(f.ctx, "some key")
	var typed *store.Error
	require.ErrorAs(f, err, &typed)
	require.Equal(f, "get", typed.Op)
	require.Equal(f, "some key", typed.Key)
	require.ErrorContains(f, err, `store: get "some key": no such key`)
}

// likeAMap applies random operations to the store and to a map, and requires the same results.
func likeAMap(f fixture) {
	r := rand.New(rand.NewPCG(1, 2))
	model := map[string]string{}
	for range 300 {
		s := []store.Store{f.a, f.b}[r.IntN(2)]
		key, value := fmt.Sprint("key", r.IntN(5)), fmt.Sprint(r.IntN(3))
		old, exists := model[key]
		switch r.IntN(4) {
		case 0:
			f.set(s, key, value)
			model[key] = value
		case 1:
			existed, err := s.Delete(f.ctx, key)
			require.NoError(f, err)
			require.Equal(f, exists, existed)
			delete(model, key)
		case 2:
			now, err := s.CompareAndSet(f.ctx, key, []byte(value), []byte("2"))
			if !exists {
				require.ErrorIs(f, err, store.ErrNotFound)
				break
			}
			require.NoError(f, err)
			if old == value {
				model[key] = "2"
			}
			require.Equal(f, model[key], string(now))
		case 3:
			got, err := s.Get(f.ctx, key)
			require.Equal(f, exists, err == nil)
			require.Equal(f, old, string(got))
		}
	}
}
