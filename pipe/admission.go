package pipe

import (
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/internal/quota"
)

// Admit ends the counting of the pipe against Limits.UnadmittedBytes: the application
// trusts the peer from now on. It does nothing on a pipe that was dialled, was admitted
// before or is closed, and without that limit.
func (p *Pipe) Admit() { p.account.Close() }

// unadmittedError is why a pipe or a handshake is ended whose peer held most of what
// those not admitted share.
func (c *Context) unadmittedError() error {
	return fmt.Errorf("%w: peers that are not admitted hold the %d bytes of UnadmittedBytes, and this one holds most",
		ErrLimit, c.limits.UnadmittedBytes)
}

// evictable has the pipe fail when its account is evicted. Until then the handshake did.
func (p *Pipe) evictable() error {
	fail := func() { p.dialect.fail(p.errorFor("connection", "", p.context.unadmittedError())) }
	if !p.account.OnEvict(fail) {
		return p.context.unadmittedError()
	}
	return nil
}

// charge is what one frame of the peer counts in the account of its pipe or handshake,
// in bytes. The zero charge counts nothing.
type charge struct {
	context *Context
	account *quota.Account
	bytes   int
}

func (p *Pipe) newCharge() charge { return charge{context: p.context, account: p.account} }

// grow makes the charge n bytes, before they are allocated, unless it is larger. It fails
// if the peer holds most of a quota that is used up.
func (c *charge) grow(n int) error {
	if c == nil || c.account == nil || n <= c.bytes {
		return nil
	}
	if !c.account.Charge(n - c.bytes) {
		return c.context.unadmittedError()
	}
	c.bytes = n
	return nil
}

// shrink makes the charge n bytes, which it had before.
func (c *charge) shrink(n int) {
	if c.account != nil && n < c.bytes {
		c.account.Release(c.bytes - n)
		c.bytes = n
	}
}

// release ends the charge: its memory is free.
func (c *charge) release() { c.shrink(0) }
