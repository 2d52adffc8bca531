package pipe

import (
	"sync"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// replies is the reply connection. Its writing half may be ended while a reply
// is being written; half a reply would look to the peer like a cut.
type replies struct {
	link

	mu      sync.Mutex
	writing bool
	ended   bool
}

// write sends one reply. It returns ErrClosed once the writing half is ended.
func (r *replies) write(reply []byte) error {
	if !r.begin() {
		return ErrClosed
	}
	err := r.WriteFrames(transport.Frame{reply})
	if r.wrote() {
		r.CloseWrite()
	}
	return err
}

func (r *replies) begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writing = !r.ended
	return r.writing
}

// wrote reports whether the writing half is to be ended now.
func (r *replies) wrote() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writing = false
	return r.ended
}

// end ends the writing half, behind the reply that is being written.
func (r *replies) end() {
	r.mu.Lock()
	r.ended = true
	writing := r.writing
	r.mu.Unlock()
	if !writing {
		r.CloseWrite()
	}
}
