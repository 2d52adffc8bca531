package pipe

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"syscall"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// What the listening end chose may turn out not to work: a channel when it is
// tried, a transport when it is dialled, because a limit of one of the processes is
// reached or a filter forbids what it needs. The dialling end then says so and
// begins anew without it. Every attempt has less to choose from than the one before.

// refusedPart is the error of a handshake that is to begin anew, because a channel
// or a transport that the listening end chose does not work.
type refusedPart struct {
	what, name string
	err        error
}

func (e *refusedPart) Error() string { return e.what + " " + e.name + ": " + e.err.Error() }

func (e *refusedPart) Unwrap() error { return e.err }

// errAnew is what the listening end makes of a handshake that was given up so.
var errAnew = errors.New("the dialling end begins anew")

// exclusions are what a dialling end does without, and why.
type exclusions struct{ channels, transports map[string]string }

func (x exclusions) add(p *refusedPart) {
	if p.what == "channel" {
		x.channels[p.name] = p.err.Error()
	} else {
		x.transports[p.name] = p.err.Error()
	}
}

// unreached makes err one after which to begin without a transport, unless there is
// no time left.
func (d *dialer) unreached(name string, err error) error {
	if d.opening.ctx.Err() != nil {
		return err
	}
	return &refusedPart{what: "transport", name: name, err: err}
}

// isRefusedBySystem reports whether a pipe could not be built because of something
// that the system did not grant, and not because of a channel.
func isRefusedBySystem(err error) bool {
	var errno syscall.Errno
	var ofChannel *channel.Error
	return errors.As(err, &errno) && !errors.As(err, &ofChannel)
}

// verdictOf is the frame that says why the dialling end begins anew.
func verdictOf(err error) transport.Frame {
	text := []byte(err.Error())
	return transport.Frame{text[:min(len(text), wire.MaxVerdict)]}
}

// sayAnew tells the listening end, which waits for a connection that will not come.
// Should that fail it waits until its time is up.
func sayAnew(first transport.Conn, err error) {
	var refused *refusedPart
	if errors.As(err, &refused) {
		_ = first.WriteFrames(verdictOf(refused))
	}
}

// awaitMove waits for the connection that takes the place of the first one, or the
// word that it will not come. Then first is closed.
func (w *welcomer) awaitMove(s *spec, t *ticket, first transport.Conn) (transport.Conn, error) {
	ctx, cancel := context.WithCancelCause(w.opening.ctx)
	var hearing sync.WaitGroup
	hearing.Go(func() {
		if err := w.verdict(first); err != nil {
			s.judgeMove(ctx, cancel, err)
		}
	})
	defer hearing.Wait()
	defer cancel(nil)
	defer first.Close()
	conn, err := t.wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("connection to come over %s: %w", t.transport, err)
	}
	return conn, w.opening.add(conn)
}

// rejection begins the frame with which the listening end rejects the connection that
// replaces the first one. The reason follows, a text of up to wire.MaxVerdict bytes.
const rejection = "refused:"

// acceptMove sends the last frame of the handshake of a native pipe that has moved. The
// frame confirms that this end has the resources of the session, or rejects the connection.
func (w *welcomer) acceptMove(s *spec, id uint64) error {
	err := w.listener.context.prepareSession(s, s.desc)
	if err == nil {
		return sayRequested(s.desc, id)
	}
	reason := append(transport.Frame{[]byte(rejection)}, verdictOf(err)...)
	if s.desc.WriteFrames(reason) == nil && s.desc.CloseWrite() == nil {
		_, _ = s.desc.NextFrame() // until the peer hangs up: closing earlier might lose the frame
	}
	return err
}

// hearMoved reads the answer to that connection.
func hearMoved(conn transport.Conn, id uint64) error {
	frame, err := readFrame(conn, nil, len(rejection)+wire.MaxVerdict, nil)
	if err != nil {
		return fmt.Errorf("the listening end hung up on it: %w", err)
	}
	if reason, rejected := strings.CutPrefix(string(frame), rejection); rejected {
		return fmt.Errorf("the listening end refuses it: %s", clipReason(reason))
	}
	return checkRequested(frame, id)
}

// judgeMove cancels the waiting for a connection when the one that it is to replace
// has brought err. A native peer keeps that until it has heard of the move; others
// end it when the new one is on its way, a C++ peer perhaps a little before.
func (s *spec) judgeMove(ctx context.Context, cancel context.CancelCauseFunc, err error) {
	switch {
	case s.native, errors.Is(err, errAnew):
		cancel(err)
	case s.features&wire.FeatureControl != 0:
		giveLastCall(ctx, cancel, err)
	}
}

// reasons are those that the peer is told: of what this end does not have here, and
// of what it does without for this pipe.
func (r *registry) reasons(what string, more map[string]string) map[string]string {
	out := reasonsOf(r.refusals(what))
	maps.Copy(out, more)
	return out
}

// refusals are those of what this end does not have here.
func (r *registry) refusals(what string) (out []Refusal) {
	for _, refusal := range r.refused {
		if refusal.What == what {
			out = append(out, refusal)
		}
	}
	return out
}

// reasonsOf collects refusals by name.
func reasonsOf(refused []Refusal) map[string]string {
	out := map[string]string{}
	for _, r := range refused {
		out[r.Name] = r.Reason
	}
	return out
}
