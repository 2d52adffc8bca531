//go:build !linux

package sysid

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNothingIsKnown(t *testing.T) {
	_, boot := BootID()
	_, ns := NamespaceID(PID)
	_, process := Process()
	for _, err := range []error{boot, ns, process} {
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "/proc")
	}
}
