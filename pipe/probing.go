package pipe

import (
	"fmt"
	"maps"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Some channels have to be tried with the actual peer (channel.Prober). The
// listening end tries them when it has read what the dialling end offers, and
// passes over those that do not work. For those it chooses the dialling end tries
// them too, and answers with a verdict; where one does not work it dials again
// without it, see anew.go.

// probeOffers is what this end shows first of the channels that it has, but for
// those in except.
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

// probe tries a channel with what the peer shows of it, and what this end has shown.
// Where the peer shows nothing there is nothing to try.
func (e ChannelEntry) probe(offers, shown map[string][]byte) error {
	p, ok := e.Factory.(channel.Prober)
	offer, offered := offers[e.Name]
	if !ok || !offered {
		return nil
	}
	return p.Probe(offer, shown[e.Name])
}

// probeAll tries the channels that could serve a pair of devices, but for those in
// except, and adds to them those of which it turned out that they cannot.
func (r *registry) probeAll(remote map[string]deviceDescriptors, offers map[string][]byte, except map[string]string) map[string]string {
	refused := map[string]string{}
	maps.Copy(refused, except)
	for _, e := range r.channels {
		if _, excluded := except[e.Name]; excluded || e.claimPairs(remote[e.Name], map[devicePair]string{}) != "" {
			continue
		}
		if err := e.probe(offers, nil); err != nil {
			refused[e.Name] = err.Error()
		}
	}
	return refused
}

// passOver adds to refused the channels that a pipe over a transport is better off
// without, unless then devices would be left without any, or somebody has asked for
// the channel.
func (r *registry) passOver(transportName string, remote map[string]deviceDescriptors, refused map[string]string, asked func(string) bool) map[string]string {
	t, _ := r.transport(transportName)
	more := maps.Clone(refused)
	for _, e := range r.channels {
		s, ok := e.Factory.(channel.Selective)
		_, already := refused[e.Name]
		if !ok || already || asked(e.Name) {
			continue
		}
		if err := s.Suits(t.Transport); err != nil {
			more[e.Name] = err.Error()
		}
	}
	all, _ := r.chooseChannels(remote, refused)
	if some, _ := r.chooseChannels(remote, more); len(some) < len(all) {
		return refused
	}
	return more
}

// probe tries what the listening end chose, and tells it what came of that if it
// waits for it.
func (d *dialer) probe(s *spec, p wire.Probing, first transport.Conn) error {
	if len(p.Offers) == 0 || d.context.unmarked {
		return nil
	}
	var refused error
	verdict := transport.Frame{}
	for _, e := range d.context.registry.selected(s.routes) {
		if err := e.probe(p.Offers, d.shown); err != nil {
			refused = &refusedPart{what: "channel", name: e.Name, err: err}
			verdict = verdictOf(refused)
			break
		}
	}
	if err := first.WriteFrames(verdict); err != nil && refused == nil {
		return classify(err)
	}
	s.tried = p.Offers
	return refused
}

// answerOffers is what the listening end shows of the channels that it chose, if
// the other end showed something too.
func (r *registry) answerOffers(chosen routes, theirs map[string][]byte) map[string][]byte {
	out := map[string][]byte{}
	for _, e := range r.selected(chosen) {
		p, ok := e.Factory.(channel.Prober)
		if offer, both := theirs[e.Name]; ok && both {
			out[e.Name] = p.Offer(offer)
		}
	}
	return out
}

// verdict waits for what the dialling end says of the channels it was to try.
func (w *welcomer) verdict(first transport.Conn) error {
	frame, err := readFrame(first, nil, wire.MaxVerdict, nil)
	if err != nil {
		return classify(err)
	}
	if len(frame) > 0 {
		return fmt.Errorf("%w: %s", errAnew, clipReason(string(frame)))
	}
	return nil
}

// overrule puts the reasons that are known from trying in place of those that the
// choice found. With who they are the peer's words.
func overrule(refused []Refusal, who string, reasons map[string]string) []Refusal {
	out := slices.Clone(refused)
	for i, r := range out {
		reason, tried := reasons[r.Name]
		switch {
		case !tried:
		case who == "":
			out[i].Reason = reason
		default:
			out[i].Reason = who + ": " + clipReason(reason)
		}
	}
	return out
}

// mayUse checks that the listening end did not choose what this one does without.
func (d *dialer) mayUse(transportName string, all routes) error {
	if _, without := d.without.transports[transportName]; without {
		return protocolError("answer chose transport %q, which this end did not offer", transportName)
	}
	for name := range d.without.channels {
		if all.use(name) {
			return protocolError("answer chose channel %q, which this end did not offer", name)
		}
	}
	return nil
}
