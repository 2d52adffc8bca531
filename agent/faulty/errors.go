package faulty

import (
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

var (
	// ErrInjected says that a rule had the sending of a message fail.
	ErrInjected = errors.New("injected failure")

	// ErrRule says that a rule makes no sense.
	ErrRule = errors.New("wrong rule")
)

// injected is the error of a rule. It matches ErrInjected.
type injected struct{ err error }

func (e *injected) Error() string { return e.err.Error() }

func (e *injected) Unwrap() error { return e.err }

func (e *injected) Is(target error) bool { return target == ErrInjected }

// failure is the error for a message.
func failure(err error, m *agent.Message) error {
	if err == nil {
		what := m.Name
		if m.Type != "" {
			what = m.Type
		}
		err = fmt.Errorf("RPCErr:2:Send attempt failed intentionally for %s to %s", what, m.Peer.Name)
	}
	return &injected{err}
}
