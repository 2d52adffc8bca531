package cma_test

import (
	"encoding/binary"
	"log/slog"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// vouched is a connection whose PeerIdentity is set by the test.
type vouched struct {
	transport.Conn
	pid int
}

func (v vouched) PeerIdentity() (transport.Identity, error) {
	return transport.Identity{Process: &transport.Credentials{PID: v.pid}}, nil
}

// shownBy returns an offer that names process pid, with the address 0 and a nonce of zeros.
func shownBy(pid int) []byte {
	return append(binary.LittleEndian.AppendUint32(nil, uint32(pid)), make([]byte, 24)...)
}

// If the process of the peer is known, because it was probed or the kernel reports it, an
// announcement or description of another process ends the channel with channel.ErrProtocol.
func TestDescriptionsOfAnotherProcess(t *testing.T) {
	own, validity := []byte("12345678"), make([]byte, 8)
	binary.NativeEndian.PutUint64(validity, 5)
	me, other := os.Getpid(), os.Getppid()
	for name, known := range map[string]struct {
		offer []byte
		first transport.Conn
	}{
		"tried":         {offer: shownBy(other)},
		"vouched":       {first: vouched{pid: other}},
		"both":          {offer: shownBy(other), first: vouched{pid: other}},
		"tried, unseen": {offer: shownBy(other), first: vouched{pid: 0}},
	} {
		for _, native := range []bool{false, true} {
			near, far := connections(t, native)
			ch, broken := openLink(t, channel.Link{Conns: near, Offer: known.offer, First: known.first})
			done, err := result()
			ch.Recv(7, device.Bytes(make([]byte, 8)), done)
			frame := announcement(me, address(own))
			if native {
				frame = offer(me, 7, address(validity), 5, address(own), 8)
			}
			write(t, far[0], frame)
			require.ErrorIs(t, <-err, channel.ErrProtocol, name)
			require.ErrorContains(t, <-broken, "by process", name)
		}
	}
}

// New fails with channel.ErrProtocol if the peer was probed as another process than the kernel
// reports.
func TestProbedAsAnotherProcess(t *testing.T) {
	near, _ := connections(t, true)
	_, err := cma.New(cma.Options{}).New(t.Context(), channel.Link{
		Native: true, Conns: near, Offer: shownBy(1), First: vouched{pid: os.Getpid()},
		Peer: "worker1", Broken: func(error) {}, Logger: slog.New(slog.DiscardHandler),
	}, channel.RoleListen)
	require.ErrorIs(t, err, channel.ErrProtocol)
}
