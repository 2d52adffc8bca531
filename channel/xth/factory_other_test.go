//go:build !linux

package xth_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

func TestNotViable(t *testing.T) {
	f := xth.New()
	require.ErrorIs(t, f.Viable(), transport.ErrNotSupported)
	require.Empty(t, f.DeviceDescriptors())

	near, far := connections(t)
	_, err := f.New(t.Context(), channel.Link{Conns: near}, channel.RoleConnect)
	require.ErrorIs(t, err, transport.ErrNotSupported)
	_, err = far[0].NextFrame()
	require.Error(t, err)
}
