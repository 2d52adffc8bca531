package ringnet

import (
	"fmt"
	"os"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// CreateShared creates the segment for a session whose client opens up to that many
// streams, one of them for bulk. The server creates it and passes the file to the client while the session is
// negotiated: then a lack of descriptors or mappings, at either end, fails the
// negotiation and not the open session.
func CreateShared(streams int) (*segment.Segment, error) {
	return createdFor(sharedRings(streams))
}

// MapShared maps the segment that the server has created for that many streams. The
// caller keeps the file. An error that matches [ErrCorrupt] blames the peer.
func MapShared(f *os.File, streams int) (*segment.Segment, error) {
	return mapPeers(f, []int{segmentSize(sharedRings(streams)...)})
}

// useShared makes the segment's places those of the streams that the client opens.
func (s *Session) useShared(shared *segment.Segment, cfg transport.SessionConfig) error {
	if shared == nil {
		return nil
	}
	s.segments = append(s.segments, shared)
	rings := sharedRings(cfg.Streams)
	if n := len(shared.Bytes()); n != segmentSize(rings...) {
		return fmt.Errorf("ringnet: a segment of %d bytes is not for %d streams", n, cfg.Streams)
	}
	all := placesOf(shared.Bytes(), rings)
	if !cfg.Client {
		s.theirs = all
		return nil
	}
	for _, p := range all {
		p.left.Store(1)
	}
	s.mine = all
	return nil
}
