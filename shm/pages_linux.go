package shm

import (
	"errors"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
)

// inboxBegin is how many bytes of an inbox have pages at first: enough for what two
// ends say that then make a session of their connection. A peer of ours has the rest
// set aside when it writes more. A C++ peer knows nothing of that, and for one that
// dials all is set aside before it can write anything. One that listens shows what it
// is when it may write already; but there who dials speaks first, and that is later.
const inboxBegin = 64 << 10

// createInbox makes an inbox of this end. Where the system cannot set pages aside
// later, it has all of them.
func createInbox() (memory, error) {
	m, err := create(inboxSize, inboxBegin)
	if err != nil || !errors.Is(segment.Reserve(m.data.Bytes()[:1]), errors.ErrUnsupported) {
		return m, err
	}
	m.close()
	return create(inboxSize, inboxSize)
}

// complete has all pages of an inbox set aside, and of a larger one that somebody
// else has made as many as ours have.
func (m memory) complete() error {
	data := m.data.Bytes()
	err := segment.Reserve(data[:min(len(data), inboxSize)])
	if errors.Is(err, errors.ErrUnsupported) {
		return nil // then nobody makes others
	}
	return err
}
