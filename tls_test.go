package tensorpipe_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testcert"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestWithTLS checks that a profile with TLS opens pipes over TCP with TLS, lanes included, that a
// plain context does not reach it, and that the profile it was made from stays plain.
func TestWithTLS(t *testing.T) {
	config := testcert.New(t)
	plain := tensorpipe.TorchProfile()
	secure, err := plain.WithTLS(config).NewContext(pipe.Options{Policy: pipe.Policy{Channels: pipe.Rule{Require: []string{"mpt_uv"}}}})
	require.NoError(t, err)
	defer func() { require.NoError(t, secure.Close()) }()
	l, err := secure.Listen(t.Context(), "uv://127.0.0.1:0")
	require.NoError(t, err)
	from, err := secure.Dial(t.Context(), l.URLs()[0])
	require.NoError(t, err)
	to, err := l.Accept(t.Context())
	require.NoError(t, err)
	state, ok := from.TLS()
	require.True(t, ok)
	require.Len(t, state.PeerCertificates, 1)
	_, ok = to.TLS()
	require.True(t, ok)
	sendBytes(t, from, to, 4<<20)
	name, _ := from.Plan().Channel(device.CPU(), device.CPU())
	require.Equal(t, "mpt_uv", name)
	require.Equal(t, "mpt_uv", from.Stats().Channels[len(from.Stats().Channels)-1].Name)

	other, err := plain.NewContext(pipe.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Close()) }()
	_, err = other.Dial(t.Context(), l.URLs()[0])
	require.ErrorContains(t, err, "TLS")
}
