package uv

import (
	"strings"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

var _ transport.Reacher = (*Transport)(nil)

// Reach is addr, unless that is a wildcard: a C++ listener bound to one
// advertises just that. Then it is the host to which c leads, with addr's port.
// Over TLS the name that the peer of c proved is added, see [Transport.Dial]:
// the certificate need not have the numeric address in it.
func (t *Transport) Reach(addr string, c transport.Conn) string {
	addr, _, _ = strings.Cut(addr, nameMark) // whom to trust is not the peer's to say
	a, err := ParseAddr(addr)
	if err != nil {
		return addr
	}
	if a.wildcard() {
		peer, err := ParseAddr(c.RemoteAddr())
		if err != nil {
			return addr
		}
		a.Host = peer.Host
		addr = a.String()
	}
	if secure, ok := c.(*tlsConn); ok && secure.name != serverName(a.Host) {
		addr += nameMark + secure.name
	}
	return addr
}
