package agent

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
)

// An exposure is what others reach here at an address.
type exposure struct {
	what    string // as this worker does it
	danger  string // what anybody can do then
	address string // URL
}

// checkListen refuses to let in whoever comes, beyond this machine.
func (a *Agent) checkListen(c *Config, urls []string) error {
	for _, u := range urls {
		e := exposure{"listening", "whoever reaches this address can call what is served here", u}
		if err := a.checkExposure(c, e); err != nil {
			return err
		}
	}
	return nil
}

// checkStore is checkListen for the store, if this worker serves it. Who reaches that can
// make himself a member, whom the others call and let in.
func (a *Agent) checkStore(c *Config, o *store.Options, addr string) error {
	if addr == "" || o.Rank > 0 || o.Join {
		return nil
	}
	return a.checkExposure(c, exposure{
		"serving the store", "whoever reaches the store at this address can become a member of the group",
		"tcp://" + cmp.Or(o.Listen, addr),
	})
}

func (a *Agent) checkExposure(c *Config, e exposure) error {
	if len(c.Token) > 0 || c.Secure || isLocal(e.address) {
		return nil
	}
	if !c.Insecure {
		return fmt.Errorf("%w: %s at %s lets in whoever reaches it: set Token, use TLS, or set Insecure", ErrConfig, e.what, e.address)
	}
	a.log.Warn(e.danger, "address", e.address)
	return nil
}

// isLocal reports whether only this machine reaches what listens at a URL. Of transports
// that are not known here that is not known.
func isLocal(address string) bool {
	scheme, _, _ := strings.Cut(address, "://")
	switch scheme {
	case "shm", "mem":
		return true
	case "uv", "tcp":
	default:
		return false
	}
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}
