package agent

import (
	"bytes"
	"context"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// answer is the message with which a request was answered, as interceptors and the codec
// made it. It may be sent any number of times, concurrently.
//
// It refers to no value of the handler, which could keep any amount of memory reachable,
// its arguments among it, but to the storages of the large tensors. When the last
// reference to an answer is gone these are released as any storage that has become
// unreachable.
type answer struct {
	kind     kind
	body     []byte
	tensors  []pipe.Tensor
	storages []*tensor.Storage // of these, nil for those that were copied
	bytes    int               // that it holds
}

// copied reports whether a kept answer has a copy of a tensor: a small one may lie in a
// large storage, and smaller is what a pipe copies as well.
func copied(b device.Buffer) bool {
	return b.IsHost() && b.Stream() == nil && b.Len() <= inlineTensors
}

// held returns how many bytes copyAnswer would hold: the body, the tensors that it copies,
// and once each of the storages in which the others lie.
func (e *envelope) held() int {
	n := len(e.buf) - e.head
	var counted map[*tensor.Storage]bool
	for i, s := range e.encoder.Storages() {
		b := e.message.Tensors[i].Buffer
		switch {
		case copied(b):
			n += b.Len()
		case !counted[s]:
			if counted == nil {
				counted = map[*tensor.Storage]bool{}
			}
			counted[s] = true
			n += s.Len()
		}
	}
	return n
}

// copyAnswer returns the answer in e, in memory of its own but for the large tensors. Its
// size is what held returned.
func (e *envelope) copyAnswer(k kind, size int) *answer {
	a := &answer{
		kind: k, bytes: size,
		body:     bytes.Clone(e.buf[e.head:]),
		tensors:  slices.Clone(e.message.Tensors),
		storages: slices.Clone(e.encoder.Storages()),
	}
	for i := range a.tensors {
		if b := a.tensors[i].Buffer; copied(b) {
			a.tensors[i].Buffer = device.Bytes(slices.Concat(b.AppendSegments(nil)...))
			a.storages[i] = nil
		}
	}
	return a
}

// repeated is the task of a request that is answered as another one was. It refers to the
// run, not to the answer: a task that the backlog holds keeps no memory of an answer that
// has been evicted.
type repeated struct{ run *run }

// Run answers the request. An error is the answer too.
func (t repeated) Run(_ context.Context, r *Request) {
	kept, why := r.conn.owner.memory.answer(t.run)
	if kept == nil {
		_ = r.Fail(why.err(r))
		return
	}
	if r.claim() == nil {
		r.answerAgain(kept)
	}
}

// short implements shortTask: no code of the application runs, which would need a slot.
func (repeated) short() bool { return true }

// answerAgain sends an answer that was sent before.
func (r *Request) answerAgain(kept *answer) {
	a := r.conn.agent
	e := a.envelopes.get()
	e.begin(appendHead(e.buf[:0], kept.kind, 0, r.id))
	e.back = r.conn.back
	e.about = Message{Kind: kept.kind.public(), Type: r.handler.typ, Name: r.handler.name, Peer: r.conn.peer}
	err := guarded(func() error { // builds with the tag "invariants" panic at a use of released memory
		if err := kept.usable(); err != nil {
			return err
		}
		return e.fill(append(e.buf, kept.body...), slices.Clone(kept.tensors), a.devices)
	})
	if err != nil {
		a.envelopes.put(e)
		r.answerFailure(marked(ErrResult, err))
		return
	}
	r.send(e)
}

// usable returns an error if the application has released a tensor of the answer.
func (a *answer) usable() error {
	for _, s := range a.storages {
		if s == nil {
			continue
		}
		if _, err := s.Buffer(); err != nil {
			return err
		}
	}
	return nil
}
