package wire

import (
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/internal/nop"
)

// reader decodes one message. Like the Decoder in it, it keeps its first
// failure, together with the member that was being read.
type reader struct {
	nop.Decoder
	limits  Limits
	message string
	field   string
}

func newReader(message string, p []byte, limits Limits) reader {
	r := reader{Decoder: nop.NewDecoder(p), limits: limits.WithDefaults(), message: message}
	r.within(int64(len(p)), r.limits.Frame, "bytes")
	return r
}

// at says which member is read next.
func (r *reader) at(field string) {
	if r.Err() == nil {
		r.field = field
	}
}

// within checks a size against a limit.
func (r *reader) within(n, limit int64, unit string) bool {
	if n <= limit {
		return true
	}
	r.Fail(fmt.Errorf("%w: %d %s, at most %d", ErrLimit, n, unit, limit))
	return false
}

// list reads the head of an array of at most limit elements, each of at least
// minSize bytes.
func (r *reader) list(minSize, limit int) int {
	n := r.Array(minSize)
	if !r.within(int64(n), int64(limit), "elements") {
		return 0
	}
	return n
}

// text reads a name, an address or the text of a descriptor.
func (r *reader) text() string {
	p := r.Bytes()
	if !r.within(int64(len(p)), int64(r.limits.Text), "bytes") {
		return ""
	}
	return string(p)
}

// end returns the failure of the message, if any.
func (r *reader) end() error {
	r.at("")
	if err := r.Finish(); err != nil {
		return &Error{Message: r.message, Field: r.field, Err: err}
	}
	return nil
}

// result returns m if the message was decoded without failure.
func result[M any](r *reader, m M) (M, error) {
	if err := r.end(); err != nil {
		var none M
		return none, err
	}
	return m, nil
}
