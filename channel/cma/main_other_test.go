//go:build !linux

package cma_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestNotViable(t *testing.T) {
	f := cma.New(cma.Options{})
	require.ErrorIs(t, f.Viable(), transport.ErrNotSupported)
	require.Empty(t, f.DeviceDescriptors())
	require.ErrorIs(t, f.Probe(f.Offer(nil), nil), transport.ErrNotSupported)
	_, err := f.New(t.Context(), channel.Link{Conns: make([]transport.Conn, 2)[:0], Native: true}, channel.RoleConnect)
	require.Error(t, err)
}
