package store_test

import (
	"testing"

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
