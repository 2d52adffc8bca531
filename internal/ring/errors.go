package ring

import "errors"

// ErrBusy is returned by Begin while another of the same role is at work, or this
// one itself: try again later. If there is no other, the peer has taken a role
// that is not its own.
var ErrBusy = errors.New("ring: the role is taken")

// ErrIdle is returned by calls that need a transaction when there is none.
var ErrIdle = errors.New("ring: no transaction has begun")

// ErrShort is returned where there is less room, or fewer bytes, than asked for:
// try again later.
var ErrShort = errors.New("ring: too little room, or too few bytes")

// ErrCorrupt matches errors about a header that no honest peer writes. Nothing can
// be moved through the ring any more.
var ErrCorrupt = errors.New("ring: the peer broke the header")

// ErrForm matches errors about memory that cannot hold a header, and sizes that
// rings cannot have.
var ErrForm = errors.New("ring: this cannot be a ring")
