package bulk

import (
	"errors"

	"github.com/tensorpipe-go/tensorpipe/internal/native"
)

// ErrChecksum matches the error of a Mover that received bytes other than
// those the peer sent. Something between the two memories is broken; nothing
// that comes over this connection can be trusted. It is the same value as
// native.ErrChecksum.
var ErrChecksum = native.ErrChecksum

// ErrBusy matches the error of a Send or Recv with an id that is under way in
// that direction of the lane. It is a mistake of the caller, who counts ids.
var ErrBusy = errors.New("a transfer with this id is under way")
