package pipe

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// A candidate that the server chose may fail: a channel when the client probes it, a
// transport when the client dials it, because a process has reached a limit or a filter
// forbids a system call. The client then reports the failure and repeats the handshake
// without the candidate. Each attempt has fewer candidates than the one before.

// failedCandidate is the error of a handshake in which a channel or transport that the server chose
// did not work; err is why. The client repeats the handshake without it.
type failedCandidate struct {
	kind CandidateKind // a transport or a channel
	name string
	err  error
}

func (e *failedCandidate) Error() string { return string(e.kind) + " " + e.name + ": " + e.err.Error() }

func (e *failedCandidate) Unwrap() error { return e.err }

// errRetry is the server's error for a handshake that the client repeats.
var errRetry = errors.New("the client retries the handshake")

// exclusions are the candidates that this end neither offers nor chooses, with the
// reasons, by name.
type exclusions struct{ channels, transports map[string]string }

// transportFailed returns err as a failedCandidate for the named transport, so that the client repeats
// the handshake without it. Once the context of the handshake has ended it returns err itself.
func (h *clientHandshake) transportFailed(name string, err error) error {
	if h.conns.ctx.Err() != nil {
		return err
	}
	return &failedCandidate{kind: CandidateTransport, name: name, err: err}
}

// reasonFrame returns a frame with the text of err, cut off after wire.MaxRejection bytes.
func reasonFrame(err error) transport.Frame {
	text := []byte(err.Error())
	return transport.Frame{text[:min(len(text), wire.MaxRejection)]}
}

// sendRetry reports err to the server if it is a failedCandidate, so that the server does not wait
// for a connection that will not come. If sending fails the server waits until its
// HandshakeTimeout.
func sendRetry(first transport.Conn, err error) {
	var failed *failedCandidate
	if errors.As(err, &failed) {
		_ = first.WriteFrames(reasonFrame(failed))
	}
}

// awaitMovedConn waits for t, the connection that replaces first, and returns it; h.conns then owns it.
// In any case it closes first. If the client reports on first that it retries, the error matches
// errRetry. Otherwise it is the error of first if first ends too early, or the cause of the handshake's
// context.
func (h *serverHandshake) awaitMovedConn(s *spec, t *pendingConn, first transport.Conn) (transport.Conn, error) {
	ctx, cancel := context.WithCancelCause(h.conns.ctx)
	var reader sync.WaitGroup
	reader.Go(func() {
		err := h.awaitProbeResult(first)
		switch {
		case err == nil:
		case s.native, errors.Is(err, errRetry):
			cancel(err) // a native client keeps the first connection until the move is confirmed
		case s.features&wire.FeatureControl != 0:
			// This client has opened the new connection before it closes the first one, so the
			// new one arrives soon or not at all. A C++ client may close the first one earlier.
			cancelAfterGrace(ctx, cancel, err)
		}
	})
	defer reader.Wait()
	defer cancel(nil)
	defer first.Close()
	conn, err := t.wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("connection over %s: %w", t.transport, err)
	}
	return conn, h.conns.add(conn)
}

// rejectPrefix begins the frame with which the server rejects the connection that replaces
// the first one. The reason follows, a text of up to wire.MaxRejection bytes.
const rejectPrefix = "refused:"

// confirmMove ends a native handshake that has moved to another transport. It acquires the resources of
// the session on s.desc and sends a confirmation, the last frame of the handshake. id is the
// registration id of s.desc. If it cannot acquire them, it sends the reason instead, waits until the
// client closes the connection, and returns the error.
func (h *serverHandshake) confirmMove(s *spec, id uint64) error {
	err := h.listener.context.prepareSession(s, s.desc)
	if err == nil {
		return sendRequested(s.desc, id)
	}
	reason := append(transport.Frame{[]byte(rejectPrefix)}, reasonFrame(err)...)
	if s.desc.WriteFrames(reason) == nil && s.desc.CloseWrite() == nil {
		_, _ = s.desc.NextFrame() // until the client closes: closing earlier might lose the frame
	}
	return err
}

// readMoveAnswer waits for the frame that confirmMove sends on conn, whose registration id is id. It
// returns nil if the server has the resources of the session. If the server rejects conn, the error has
// the reason. For any other frame the error matches ErrProtocol. If conn ends first, the error is that
// of conn.
func readMoveAnswer(conn transport.Conn, id uint64) error {
	frame, err := readFrame(conn, nil, len(rejectPrefix)+wire.MaxRejection, nil)
	if err != nil {
		return fmt.Errorf("the server closed the connection: %w", err)
	}
	if reason, rejected := strings.CutPrefix(string(frame), rejectPrefix); rejected {
		return fmt.Errorf("the server rejects the connection: %s", sanitizeReason(reason))
	}
	return checkRequested(frame, id)
}

// A server that opens no pipe sends a client of this library the reason in place of an
// answer. It decides for both ends: the requirements of the client are in the offer.

// refusalKinds maps the kinds of rejections on the wire to the errors of this package.
var refusalKinds = map[wire.RefusalKind]error{
	wire.RefusedByPolicy:    ErrPolicy,
	wire.RefusedByTransport: ErrNoTransport,
	wire.RefusedByDialect:   ErrDialect,
}

// reject counts and logs the failure, sends the reason to the client, and waits until the client
// closes the connection or the handshake's context ends: closing it earlier might lose the reason.
func (h *serverHandshake) reject(first transport.Conn, reason error) {
	h.reportFailure(first, reason)
	kind := wire.RefusedOtherwise
	for _, k := range []wire.RefusalKind{wire.RefusedByPolicy, wire.RefusedByTransport, wire.RefusedByDialect} {
		if errors.Is(reason, refusalKinds[k]) {
			kind = k
			break
		}
	}
	answer := wire.NewRefusal(wire.Refusal{Kind: kind, Text: reason.Error()})
	if first.WriteFrames(transport.Frame{answer.Append(nil)}) == nil && first.CloseWrite() == nil {
		_, _ = first.NextFrame()
	}
}

// rejection is the client's error for a pipe that the server does not open, with the server's text.
type rejection struct {
	kind error // one of this package, or nil
	text string
}

func (e *rejection) Error() string { return "the server rejects the pipe: " + e.text }

func (e *rejection) Unwrap() error { return e.kind }

// Some channels must be probed with the actual peer (channel.Prober). The server probes them
// with the client's offers and does not choose those that fail. The client then probes the
// chosen ones with the server's offers and reports the result; if one fails it repeats the
// handshake without that.

// probeOffers returns this end's offers for its channels that must be probed (channel.Prober), by
// channel, without those in except. They do not answer offers of the peer.
func (r *registry) probeOffers(except map[string]string) map[string][]byte {
	out := map[string][]byte{}
	for _, e := range r.channels {
		_, excluded := except[e.Name]
		if p, ok := e.Factory.(channel.Prober); ok && !excluded {
			out[e.Name] = p.Offer(nil)
		}
	}
	return out
}

// probe probes the channel with the peer's offer for it in offers and with this end's offer in sent, if
// there is one. Both maps are by channel. It returns an error if the channel does not work. If the
// channel needs no probe or the peer made no offer, it returns nil.
func (e ChannelEntry) probe(offers, sent map[string][]byte) error {
	p, ok := e.Factory.(channel.Prober)
	offer, offered := offers[e.Name]
	if !ok || !offered {
		return nil
	}
	return p.Probe(offer, sent[e.Name])
}

// probeChannels returns the channels that the server does not use for this offer, with the reasons.
// These are the channels in except and those whose probe fails. With a client of this library they are
// also the channels that do not suit a pipe over the named transport (Layered.Suits). An unsuited
// channel is used all the same if a policy of one of the ends mentions it. All unsuited channels are
// used if a pair of devices would otherwise lose its only channel.
func (c *Context) probeChannels(r *registry, transportName string, offer clientOffer, except map[string]string) map[string]string {
	unusable := map[string]string{}
	maps.Copy(unusable, except)
	for _, e := range r.channels {
		if _, excluded := except[e.Name]; excluded {
			continue
		}
		if e.claimPairs(offer.ChannelDeviceDescriptors[e.Name], map[devicePair]string{}) != "" {
			continue // it serves no pair of devices
		}
		if err := e.probe(offer.probing.Offers, nil); err != nil {
			unusable[e.Name] = err.Error()
		}
	}
	if !offer.marked {
		return unusable
	}
	t, _ := r.transport(transportName)
	own := c.opts.Policy.Channels
	unsuited := maps.Clone(unusable)
	for _, e := range r.channels {
		layered, ok := e.Factory.(channel.Layered)
		_, already := unusable[e.Name]
		mentioned := slices.Contains(own.Require, e.Name) || slices.Contains(own.Prefer, e.Name) ||
			len(own.Prefer) == 0 && slices.Contains(offer.preferences.Channels, e.Name)
		if !ok || already || mentioned {
			continue
		}
		if err := layered.Suits(t.Transport); err != nil {
			unsuited[e.Name] = err.Error()
		}
	}
	all, _ := r.chooseChannels(offer.ChannelDeviceDescriptors, unusable)
	if some, _ := r.chooseChannels(offer.ChannelDeviceDescriptors, unsuited); len(some) < len(all) {
		return unusable
	}
	return unsuited
}

// probeChosen probes the channels that the server chose, and reports the result on first. If a channel
// does not work it returns a failedCandidate; if only the report fails, the error is that of the
// connection. It does nothing if p, from the server's answer, has no offers: the server then waits for
// no report.
func (h *clientHandshake) probeChosen(s *spec, p wire.Probing, first transport.Conn) error {
	if len(p.Offers) == 0 || h.context.hideMarker {
		return nil
	}
	var failed error
	result := transport.Frame{} // empty: all channels work
	for _, e := range h.context.registry.used(s.routes) {
		if err := e.probe(p.Offers, h.probeOffers); err != nil {
			failed = &failedCandidate{kind: CandidateChannel, name: e.Name, err: err}
			result = reasonFrame(failed)
			break
		}
	}
	if err := first.WriteFrames(result); err != nil && failed == nil {
		return classify(err)
	}
	s.peerOffers = p.Offers
	return failed
}

// awaitProbeResult waits for the client's report on first. It returns nil if all candidates work,
// an error that matches errRetry if one failed, and the error of the connection if that ends first.
func (h *serverHandshake) awaitProbeResult(first transport.Conn) error {
	frame, err := readFrame(first, nil, wire.MaxRejection, nil)
	if err != nil {
		return classify(err)
	}
	if len(frame) > 0 {
		return fmt.Errorf("%w: %s", errRetry, sanitizeReason(string(frame)))
	}
	return nil
}

// replaceReasons returns a copy of refused. Each refusal whose name is in reasons has the reason from
// there. sender names the end that sent the reasons, and precedes them; "" stands for this end.
func replaceReasons(refused []Refusal, sender string, reasons map[string]string) []Refusal {
	out := slices.Clone(refused)
	for i, r := range out {
		reason, ok := reasons[r.Name]
		switch {
		case !ok:
		case sender == "":
			out[i].Reason = reason
		default:
			out[i].Reason = sender + ": " + sanitizeReason(reason)
		}
	}
	return out
}
