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
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// A candidate that the server chose may fail: a channel when the client probes it, a
// transport when the client dials it, because a process has reached a limit or a filter
// forbids a system call. The client then reports the failure and repeats the handshake
// without the candidate. Each attempt has fewer candidates than the one before.

// failedCandidate is the error of a handshake in which a channel or transport that the server chose
// did not work, or the transport cannot carry the dialect that the server chose; err is why. The
// client repeats the handshake without it.
type failedCandidate struct {
	kind CandidateKind
	name string // of the channel or, for other kinds, of the transport
	err  error
}

func (e *failedCandidate) Error() string { return string(e.kind) + " " + e.name + ": " + e.err.Error() }

func (e *failedCandidate) Unwrap() error { return e.err }

// errRetry is the server's error for a handshake that the client repeats.
var errRetry = errors.New("the client retries the handshake")

// exclusions are the candidates that this end neither offers nor chooses, with the
// reasons, by name.
type exclusions struct {
	channels, transports map[string]string

	// devices has the devices of this end that a channel does not serve, by the name of the channel.
	devices map[string]map[device.Device]string

	// noSession has the transports whose connections carry no session, so that a pipe over them
	// cannot use the native dialect.
	noSession map[string]string
}

// add excludes the failed candidate f: the channel or transport itself, the devices of the channel if
// only they do not work or, if f is the dialect, the native dialect over the transport that f names.
func (e exclusions) add(f *failedCandidate) {
	failed, ofDevices := f.err.(channel.DeviceErrors)
	switch f.kind {
	case CandidateChannel:
		if ofDevices {
			e.devices[f.name] = merged(e.devices[f.name], texts(failed))
			return
		}
		e.channels[f.name] = f.err.Error()
	case CandidateTransport:
		e.transports[f.name] = f.err.Error()
	case CandidateDialect:
		e.noSession[f.name] = f.err.Error()
	}
}

// errNoSession is the reason why a transport cannot carry the native dialect.
var errNoSession = errors.New("its connections carry no session")

// noSessionOver returns why a pipe over the named transport does not use the native dialect, given
// the reason why its connections carry no session. If reason is "", the result is "" too.
func noSessionOver(transportName, reason string) string {
	if reason == "" {
		return ""
	}
	return "transport " + transportName + ": " + reason
}

// transportFailed returns a failedCandidate that wraps err and names a transport; dial then repeats
// the handshake without that transport. If the context of the handshake has ended, transportFailed
// returns err unchanged.
func (h *clientHandshake) transportFailed(name string, err error) error {
	if h.conns.ctx.Err() != nil {
		return err
	}
	return &failedCandidate{kind: CandidateTransport, name: name, err: err}
}

// reasonFrame returns a frame with the text of err, cut off after wire.MaxRejection bytes. The
// frame has memory of its own.
func reasonFrame(err error) transport.Frame {
	text := []byte(err.Error())
	return transport.Frame{text[:min(len(text), wire.MaxRejection)]}
}

// sendRetry sends the server the text of err over first, the first connection of the handshake, if
// err is a failedCandidate. The server then no longer waits for a connection that will not come.
// For any other err it sends nothing. A failure to send is ignored; the server then waits until its
// HandshakeTimeout.
func sendRetry(first transport.Conn, err error) {
	var failed *failedCandidate
	if errors.As(err, &failed) {
		_ = first.WriteFrames(reasonFrame(failed))
	}
}

// awaitMovedConn waits for t, the connection that replaces first, the first connection of the
// handshake, and returns it; h.conns owns it then. It closes the old connection, also if it fails.
// If the client reports on the old connection that it repeats the handshake, the error matches
// errRetry. If the old connection of a client of this library ends too early, the error wraps that
// of this connection. If the handshake's context ends, the error wraps the cause of that context.
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

// confirmMove ends, at the server, a native handshake whose connection was replaced by s.desc, over
// another transport. It acquires the memory and descriptors that the session needs and sends a
// confirmation with id, the registration id of s.desc, as the last frame of the handshake. If they
// cannot be acquired, it sends the client the reason instead, waits until the client closes the
// connection, and returns the error. If the confirmation cannot be sent, the error is that of
// s.desc.
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

// readMoveAnswer waits at the client for the frame that confirmMove sends on conn, whose
// registration id is id. It returns nil if the frame is the confirmation for id. If the server
// rejects conn, the error has the server's reason. For any other frame the error matches
// ErrProtocol. If conn fails or ends first, the error wraps that of conn.
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
	wire.RefusedByListener:  ErrNotAccepted,
	wire.RefusedByLimit:     ErrLimit,
}

// reject counts and logs a failed handshake, sends the client the reason over first, the first
// connection of the handshake, and ends the writing half of that connection. Then it blocks until
// the client closes the connection or the handshake's context ends, because closing it earlier
// might lose the reason. It does not close the connection.
func (h *serverHandshake) reject(first transport.Conn, reason error) {
	h.reportFailure(first, reason)
	kind := wire.RefusedOtherwise
	for _, k := range []wire.RefusalKind{
		wire.RefusedByPolicy, wire.RefusedByTransport, wire.RefusedByDialect, wire.RefusedByListener, wire.RefusedByLimit,
	} {
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

// rejection is the client's error for a pipe or Conn that the server does not open, with the
// server's text.
type rejection struct {
	what string // "pipe" or "Conn"
	kind error  // one of this package, or nil
	text string
}

func (e *rejection) Error() string { return "the server rejects the " + e.what + ": " + e.text }

func (e *rejection) Unwrap() error { return e.kind }

// Some channels must be probed with the actual peer (channel.Prober). The server probes them
// with the client's offers and does not choose those that fail. The client then probes the
// chosen ones with the server's offers and reports the result; if one fails it repeats the
// handshake without that.

// probeOffers returns, by channel name, the offers of this end for its channels that implement
// channel.Prober. It leaves out the channels that the map except names. Each offer is the result of
// the factory's Offer(nil), since the peer's offer is not known yet.
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

// probe finds out whether the channel works between the two ends. The map offers has the peer's
// offers by channel name, and the map sent those of this end, in which the channel may be missing.
// probe returns nil if the channel works, needs no probe or has no offer of the peer, and otherwise
// the error of the channel's Probe. A channel.DeviceErrors has only devices that e serves.
func (e ChannelEntry) probe(offers, sent map[string][]byte) error {
	p, ok := e.Factory.(channel.Prober)
	offer, offered := offers[e.Name]
	if !ok || !offered {
		return nil
	}
	err := p.Probe(offer, sent[e.Name])
	if failed, ok := errors.AsType[channel.DeviceErrors](err); ok {
		served := e.descriptors()
		failed = maps.Clone(failed)
		maps.DeleteFunc(failed, func(d device.Device, _ error) bool { return served[d] == "" })
		if err = failed; len(failed) == 0 {
			err = nil
		}
	}
	return err
}

// probeChannels returns, by name, the channels that the server does not use for the client's offer,
// with the reasons, in a new map. These are the channels in the map except, and those whose probe
// fails. With a client of this library they are also the channels that declare themselves unsuited
// (Layered.Suits) for the named transport, with two exceptions: a channel is used all the same if
// this end's policy requires or prefers it, or if the client prefers it and this end has no
// preferences; and all unsuited channels are used if a pair of devices would lose its only channel
// without them. If a probe fails for some devices only, the returned registry, a copy of r, has the
// channel without them.
func (c *Context) probeChannels(
	r *registry, transportName string, offer clientOffer, except map[string]string,
) (*registry, map[string]string) {
	unusable, failed := map[string]string{}, map[string]map[device.Device]string{}
	maps.Copy(unusable, except)
	for _, e := range r.channels {
		if _, excluded := except[e.Name]; excluded {
			continue
		}
		if e.claimPairs(offer.ChannelDeviceDescriptors[e.Name], map[devicePair]string{}) != "" {
			continue // it serves no pair of devices
		}
		err := e.probe(offer.probing.Offers, nil)
		if devices, ok := err.(channel.DeviceErrors); ok {
			failed[e.Name] = texts(devices)
		} else if err != nil {
			unusable[e.Name] = err.Error()
		}
	}
	r = r.without(failed)
	if !offer.marked {
		return r, unusable
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
		return r, unusable
	}
	return r, unsuited
}

// probeChosen probes, at the client, the channels that the server chose, and sends the result over
// first, the first connection of the handshake. If a channel does not work it returns a
// failedCandidate. If all work and only the result cannot be sent, it returns the error of the
// connection. p is the part of the server's answer with the server's offers, which s keeps for the
// channels. If p has no offers, the server waits for no result, and probeChosen does nothing and
// returns nil.
func (h *clientHandshake) probeChosen(s *spec, p wire.Probing, first transport.Conn) error {
	if len(p.Offers) == 0 || h.context.hideMarker {
		return nil
	}
	var failed error
	result := transport.Frame{} // empty: all channels work
	for _, e := range h.registry.used(s.routes) {
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

// probeAnswers returns, by channel name, the server's offers in answer to s.peerOffers, for the
// channels of s that implement channel.Prober and for which the client sent an offer.
func (s *spec) probeAnswers() map[string][]byte {
	offers := map[string][]byte{}
	for _, ch := range s.channels {
		p, ok := ch.entry.Factory.(channel.Prober)
		if theirs, both := s.peerOffers[ch.entry.Name]; ok && both {
			offers[ch.entry.Name] = p.Offer(theirs)
		}
	}
	return offers
}

// awaitProbeResult waits at the server for the client's report whether the chosen candidates work,
// which arrives over first, the first connection of the handshake. It returns nil if all of them
// work, and an error that matches errRetry and has the client's reason if one does not. If no valid
// report arrives, the error is that of readFrame, as classify returns it.
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

// replaceReasons returns a copy of refused in which each candidate whose name is in reasons has the
// reason from there; the others keep theirs. If sender is not empty, it names the end that sent
// reasons: each replaced reason is then sender, followed by the reason as sanitizeReason returns
// it.
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
