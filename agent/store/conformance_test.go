package store_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/agent/store/storetest"
)

func TestMemoryConforms(t *testing.T) {
	storetest.Run(t, storetest.Backend{New: func(t *testing.T) (a, b store.Store) {
		s := store.NewMemory(store.Limits{})
		t.Cleanup(func() { s.Close() })
		return s, s
	}})
}

func TestPrefixConforms(t *testing.T) {
	storetest.Run(t, storetest.Backend{New: func(t *testing.T) (a, b store.Store) {
		s := store.NewMemory(store.Limits{})
		a, b = store.Prefix(s, "x"), store.Prefix(s, "x")
		t.Cleanup(func() { a.Close(); b.Close(); s.Close() })
		return a, b
	}})
}

func TestTCPConforms(t *testing.T) {
	storetest.Run(t, storetest.Backend{RefusesByClosing: true, New: func(t *testing.T) (a, b store.Store) {
		_, addr := serve(t, store.ServerOptions{})
		return dial(t, addr), dial(t, addr)
	}})
}

// TestServerAndClientConform runs the conformance tests with two handles on one server: its local
// one from Server.Store, and a Client over TCP.
func TestServerAndClientConform(t *testing.T) {
	storetest.Run(t, storetest.Backend{RefusesByClosing: true, New: func(t *testing.T) (a, b store.Store) {
		s, addr := serve(t, store.ServerOptions{})
		return s.Store(), dial(t, addr)
	}})
}

func serve(t *testing.T, o store.ServerOptions) (*store.Server, string) {
	t.Helper()
	s, err := store.Serve(t.Context(), "127.0.0.1:0", o)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s, s.Addr()
}

func dial(t *testing.T, addr string) *store.Client {
	t.Helper()
	c, err := store.Dial(t.Context(), addr, store.ClientOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestFileConforms(t *testing.T) {
	storetest.Run(t, storetest.Backend{New: func(t *testing.T) (a, b store.Store) {
		path := filepath.Join(t.TempDir(), "store")
		return openFile(t, path), openFile(t, path)
	}})
}

func openFile(t *testing.T, path string) *store.File {
	t.Helper()
	s, err := store.OpenFile(t.Context(), path, store.Limits{})
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func TestMemURLConforms(t *testing.T) {
	storetest.Run(t, storetest.Backend{New: func(t *testing.T) (a, b store.Store) {
		o := store.Options{Spaces: new(store.Spaces)}
		return open(t, "mem://name", o), open(t, "mem://name", o)
	}})
}

func open(t *testing.T, url string, o store.Options) store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), url, o)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}
