package cma

import (
	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// peerProcess is the one process whose memory the peer may let this end read: that
// which was tried, and which the kernel says is at the other end of the connection.
// It is 0 where neither is known; then the first offer says it.
func peerProcess(link channel.Link) (int, error) {
	known := identified(link)
	if link.Offer == nil {
		return known, nil
	}
	tried, err := processOf(link.Offer)
	if err == nil && known != 0 && known != tried {
		err = protocolError("an offer of process %d, by process %d", tried, known)
	}
	return tried, err
}

// identified is the process that the kernel vouches for, if it does.
func identified(link channel.Link) int {
	first := link.First
	if first == nil {
		first = link.Conns[0]
	}
	if c, ok := first.(transport.Identified); ok {
		if id, err := c.PeerIdentity(); err == nil {
			return id.PID
		}
	}
	return 0
}
