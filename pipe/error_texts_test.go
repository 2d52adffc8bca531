package pipe_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// The texts of errors that users see have one line, in which the address of the peer is once.
func TestErrorTexts(t *testing.T) {
	c, err := pipe.New(pipe.Options{
		Transports: []pipe.TransportEntry{{Name: "uv", Transport: uv.New()}},
		Channels:   []pipe.ChannelEntry{{Name: "basic", Factory: basic.New()}},
	})
	require.NoError(t, err)
	l, err := c.Listen(t.Context(), "uv://127.0.0.1:0")
	require.NoError(t, err)
	url := l.URLs()[0]
	addr := freeport.Addr(t)
	_, refused := c.Dial(t.Context(), "uv://"+addr)
	_, listen := c.Listen(t.Context(), "uv://192.0.2.250:0") // an address of no machine
	_, scheme := c.Dial(t.Context(), "ibv://h")
	past, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	_, late := c.Dial(past, url)
	require.NoError(t, c.Close())
	_, closed := c.Dial(t.Context(), url)

	for _, e := range []struct {
		err  error
		text string
		is   error
	}{
		{refused, "pipe: dial uv://" + addr + ": connection refused", syscall.ECONNREFUSED},
		{listen, "pipe: listen: uv: listen on 192.0.2.250:0: cannot assign requested address", syscall.EADDRNOTAVAIL},
		{scheme, `pipe: dial ibv://h: bad url: no transport "ibv" is registered`, pipe.ErrURL},
		{late, "pipe: dial " + url + ": handshake failed: context deadline exceeded while dialling", context.DeadlineExceeded},
		{closed, "pipe: dial " + url + ": use of closed network connection", pipe.ErrClosed},
	} {
		require.EqualError(t, e.err, e.text)
		require.ErrorIs(t, e.err, e.is)
	}
}
