//go:build !linux

package shm

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestNotSupported(t *testing.T) {
	tr := New()
	require.ErrorIs(t, tr.Viable(), errors.ErrUnsupported)
	require.NotEmpty(t, tr.DomainDescriptor())
	require.False(t, tr.CanCommunicate(tr.DomainDescriptor()))
	_, err := tr.Listen(t.Context(), "")
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = tr.Dial(t.Context(), "nobody")
	require.ErrorIs(t, err, errors.ErrUnsupported)
}
