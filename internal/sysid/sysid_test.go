package sysid

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestUnknownNamespace(t *testing.T) {
	for _, ns := range []Namespace{"", "mnt", "../../etc"} {
		_, err := NamespaceID(ns)
		require.ErrorIs(t, err, errors.ErrUnsupported)
	}
}
