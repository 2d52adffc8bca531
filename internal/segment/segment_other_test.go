//go:build !linux

package segment_test

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
)

func TestNotSupported(t *testing.T) {
	_, err := segment.Create(4096)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = segment.CreateSealed(4096)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = segment.Map(os.Stdin, 4096)
	require.ErrorIs(t, err, errors.ErrUnsupported)
}
