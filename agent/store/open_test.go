package store

import (
	"context"
	"net"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// openAll opens the store at url as both ranks of a group of two, where rank 1 begins first, and
// returns both handles. The test closes them when it ends.
func openAll(t *testing.T, url string, o Options) (rank0, rank1 Store) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testwait.Limit)
	defer cancel()
	o.WorldSize = 2
	later := o
	later.Rank = 1
	one := testwait.Start(func() Store {
		s, err := Open(ctx, url, later)
		if err != nil {
			t.Error(err)
		}
		return s
	})
	rank0, err := Open(ctx, url, o)
	require.NoError(t, err)
	t.Cleanup(func() { rank0.Close() })
	rank1 = testwait.Finish(t, one)
	require.NotNil(t, rank1)
	t.Cleanup(func() { rank1.Close() })
	return rank0, rank1
}

func TestOpen(t *testing.T) {
	spaces := new(Spaces)
	for _, url := range []string{
		"tcp://" + freeport.Addr(t),
		"tcp://" + freeport.Addr(t) + "/",
		"file://" + filepath.Join(t.TempDir(), "a b%20c"),
		"mem://name",
	} {
		rank0, rank1 := openAll(t, url, Options{Spaces: spaces})
		require.NoError(t, rank1.Set(t.Context(), "key", []byte("1")))
		wantValue(t, rank0, "key", "1")
		require.NoError(t, rank1.Close())
		wantValue(t, rank0, "key", "1")
		require.NoError(t, rank0.Close())
		require.ErrorIs(t, rank0.Set(t.Context(), "key", nil), ErrClosed)
	}
	require.Empty(t, spaces.stores)
}

// TestRankZeroServes tests that with a tcp:// URL rank 0 serves the store until it closes its
// handle, that the counter of clients includes rank 0, and that a second rank 0 fails at the same
// address.
func TestRankZeroServes(t *testing.T) {
	addr := freeport.Addr(t)
	rank0, rank1 := openAll(t, "tcp://"+addr, Options{})
	local := rank0.(*view).base.(*Memory)
	require.NoError(t, rank0.Wait(t.Context()))
	value, err := local.Get(t.Context(), initKey)
	require.NoError(t, err)
	require.Equal(t, "2", string(value))
	_, err = Open(t.Context(), "tcp://"+addr, Options{})
	require.EqualError(t, err, `store: open "tcp://`+addr+`": cannot listen: address already in use`)
	_, err = Open(t.Context(), "tcp://localhost:1", Options{Listen: addr})
	require.EqualError(t, err, `store: open "tcp://localhost:1": at `+addr+`: cannot listen: address already in use`)
	require.ErrorIs(t, err, syscall.EADDRINUSE)

	require.NoError(t, rank0.Close())
	require.ErrorIs(t, rank1.Set(t.Context(), "key", nil), ErrDisconnected)
}

func TestListenElsewhere(t *testing.T) {
	port := freeport.Port(t, "127.0.0.1")
	rank0, rank1 := openAll(t, "tcp://localhost:"+port, Options{Listen: "127.0.0.1:" + port})
	require.NoError(t, rank1.Set(t.Context(), "key", []byte("1")))
	wantValue(t, rank0, "key", "1")
}

func TestOpenBadURL(t *testing.T) {
	for url, o := range map[string]Options{
		"":                   {},
		"127.0.0.1:1":        {},
		"http://127.0.0.1:1": {},
		"tcp://":             {},
		"tcp://host":         {},
		"tcp://host:1/path":  {},
		"tcp://host:1?rank=": {},
		"tcp://h:1":          {Rank: 2, WorldSize: 2},
		"tcp://h:2":          {Rank: -1},
		"file://":            {},
		"mem://":             {Spaces: new(Spaces)},
		"mem://name":         {},
		"env://somewhere":    {},
	} {
		_, err := Open(t.Context(), url, o)
		require.ErrorIs(t, err, ErrURL, url)
		var typed *Error
		require.ErrorAs(t, err, &typed)
		require.Equal(t, "open", typed.Op)
		require.Equal(t, url, typed.Key)
	}
}

func setenv(t *testing.T, values map[string]string) {
	t.Helper()
	for name, v := range values {
		t.Setenv(name, v)
	}
}

func TestEnviron(t *testing.T) {
	host, port, err := net.SplitHostPort(freeport.Addr(t))
	require.NoError(t, err)
	good := map[string]string{
		"MASTER_ADDR": host, "MASTER_PORT": port, "RANK": "0", "WORLD_SIZE": "2",
		"TORCHELASTIC_USE_AGENT_STORE": "False", "TORCHELASTIC_RESTART_COUNT": "3",
	}
	setenv(t, good)
	e, err := FromEnviron()
	require.NoError(t, err)
	require.Equal(t, Environ{Addr: host + ":" + port, WorldSize: 2}, e)
	rank0, err := Open(t.Context(), "env://", Options{Rank: 7})
	require.NoError(t, err)
	defer rank0.Close()

	t.Setenv("RANK", "1")
	rank1, err := Open(t.Context(), "env://", Options{})
	require.NoError(t, err)
	defer rank1.Close()
	require.NoError(t, rank1.Set(t.Context(), "key", []byte("1")))
	wantValue(t, rank0, "key", "1")

	// A store that torchrun serves is joined by rank 0 as well.
	setenv(t, map[string]string{"RANK": "0", "TORCHELASTIC_USE_AGENT_STORE": "True"})
	joined, err := Open(t.Context(), "env://", Options{})
	require.NoError(t, err)
	require.NoError(t, joined.Set(t.Context(), "key", []byte("2")))
	wantValue(t, rank0, "/worker/attempt_3/key", "2")
	wantValue(t, rank0, "key", "1")
	require.NoError(t, joined.Close())
	require.ErrorIs(t, joined.Set(t.Context(), "key", nil), ErrClosed)

	for name, text := range map[string]string{
		"RANK": "two", "WORLD_SIZE": "0x2", "MASTER_ADDR": "", "MASTER_PORT": "http",
		"TORCHELASTIC_RESTART_COUNT": "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, text)
			_, err := Open(t.Context(), "env://", Options{})
			require.ErrorIs(t, err, ErrURL)
			if text == "" {
				require.ErrorContains(t, err, name+" expected, but not set")
			}
		})
	}
	t.Setenv("RANK", "2")
	_, err = FromEnviron()
	require.ErrorContains(t, err, "rank 2 in a world of 2")
}
