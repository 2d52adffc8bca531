package shm

import (
	"bytes"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// A peer that writes to the socket faster than it is read keeps nobody from closing.
func TestCloseUnderAFlood(t *testing.T) {
	leakcheck.Check(t)
	for name, meet := range map[string]func(*testing.T) (*net.UnixConn, transport.Conn){
		"of doorbells": func(t *testing.T) (*net.UnixConn, transport.Conn) {
			dialled, accepted := connect(t, New())
			return dialled.socket, accepted
		},
		"of bytes that mean nothing": func(t *testing.T) (*net.UnixConn, transport.Conn) {
			l := listen(t)
			s := newStranger(t, l)
			return s.UnixConn, s.shake(t, l, 0, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			socket, c := meet(t)
			rising := make(chan struct{})
			flood := patience.Start(func() error {
				p := bytes.Repeat([]byte{somethingNew}, 64<<10)
				for n := 0; ; n++ {
					if _, err := socket.Write(p); err != nil {
						return err
					}
					if n == 8 { // more than a socket holds
						close(rising)
					}
				}
			})
			patience.Finish(t, rising)
			require.NoError(t, patience.Finish(t, patience.Start(c.Close)))
			require.Error(t, patience.Finish(t, flood))
		})
	}
}
