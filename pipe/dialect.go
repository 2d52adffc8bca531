package pipe

import (
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/internal/wire"
)

// reasonNoMarker is the reason for a peer that is no end of ours.
const reasonNoMarker = "the peer does not know it"

// marker is what an end says of itself to others of ours.
func (c *Context) marker() wire.Marker {
	m := wire.Marker{MinVersion: wire.VersionCompatible, MaxVersion: wire.VersionNative, Features: wire.FeatureControl}
	if !c.uncompressed {
		m.Features |= wire.FeatureCompression
	}
	switch c.opts.Dialect {
	case DialectCompatible:
		m.MaxVersion = wire.VersionCompatible
	case DialectNative:
		m.MinVersion = wire.VersionNative
	}
	return m
}

// chooseDialect is the listening end's choice, by what both ends announce and
// whether the connection can carry a session. Where it is not the native one
// there is a reason. It fails if one of the ends insists on what cannot be had.
func (c *Context) chooseDialect(theirs wire.Marker, marked, capable bool) (native bool, reason string, err error) {
	ours := c.marker()
	switch {
	case !marked:
		reason = reasonNoMarker
	case ours.MaxVersion < wire.VersionNative: // by this end's own options: no reason to give
	case theirs.MaxVersion < wire.VersionNative || theirs.MinVersion > ours.MaxVersion:
		reason = fmt.Sprintf("the peer's versions %d-%d do not meet ours %d-%d",
			theirs.MinVersion, theirs.MaxVersion, ours.MinVersion, ours.MaxVersion)
	case !capable:
		reason = "the transport carries no session"
	default:
		return true, "", nil
	}
	return false, reason, c.checkDialect(reason)
}

// acceptDialect reads the listening end's choice out of its answer's marker.
func (c *Context) acceptDialect(chosen wire.Marker, marked, capable bool) (native bool, reason string, err error) {
	ours := c.marker()
	switch {
	case !marked:
		reason = reasonNoMarker
	case ours.MaxVersion < wire.VersionNative: // by this end's own options: no reason to give
	case chosen.MinVersion == wire.VersionNative && chosen.MaxVersion == wire.VersionNative:
		if !capable {
			return false, "", protocolError("answer chose the native dialect on a transport that carries no session")
		}
		return true, "", nil
	default:
		reason = "the listening end did not choose it"
	}
	return false, reason, c.checkDialect(reason)
}

// checkDialect is about a pipe that does not speak the native dialect, for a
// reason.
func (c *Context) checkDialect(reason string) error {
	if c.opts.Dialect == DialectNative {
		return fmt.Errorf("%w: %s is required, and %s", ErrDialect, DialectNative, reason)
	}
	return nil
}

// noteDialect puts the choice into the plan.
func (p *Plan) noteDialect(native bool, reason string) {
	if native {
		p.Dialect = DialectNative
		return
	}
	if reason != "" {
		p.Refused = append([]Refusal{{"dialect", DialectNative, reason}}, p.Refused...)
	}
}
