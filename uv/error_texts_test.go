package uv_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// The texts of errors that users see name each address once.
func TestErrorTexts(t *testing.T) {
	u := uv.New()
	addr := freeport.Addr(t)
	_, refused := u.Dial(t.Context(), addr)
	_, listen := u.Listen(t.Context(), "192.0.2.250:0") // an address of no machine
	_, bad := u.Dial(t.Context(), "h")
	unknown := errors.New("certificate unknown")
	for _, c := range []struct {
		err  error
		text string
	}{
		{refused, "uv: dial " + addr + ": connection refused"},
		{listen, "uv: listen on 192.0.2.250:0: cannot assign requested address"},
		{bad, `uv: bad address "h": no port to dial`},
		{&uv.HandshakeError{Peer: "127.0.0.1:1", Err: unknown}, "uv: TLS handshake with 127.0.0.1:1: certificate unknown"},
		{&uv.DialError{Addr: "127.0.0.1:1", Err: &uv.HandshakeError{Peer: "127.0.0.1:1", Err: unknown}},
			"uv: dial 127.0.0.1:1: TLS handshake: certificate unknown"},
		{&uv.DialError{Addr: "h:1", Err: &uv.HandshakeError{Peer: "127.0.0.1:1", Err: unknown}},
			"uv: dial h:1: TLS handshake with 127.0.0.1:1: certificate unknown"},
	} {
		require.EqualError(t, c.err, c.text)
	}
	require.ErrorIs(t, refused, syscall.ECONNREFUSED)
	require.ErrorIs(t, listen, syscall.EADDRNOTAVAIL)
}
