package ringnet

// FirstSegment is the size of an end's first segment, LaterSegment that of each
// further one.
var (
	FirstSegment = firstSegment()
	LaterSegment = placeSize(laterRing)
)

// Words of the ring to which the end that opens the first stream of a segment
// writes.
const (
	FirstHead   = placeHeader + atHead
	FirstTail   = placeHeader + atTail
	FirstReader = placeHeader + atReader
)

// Bells that a peer may ring.
const (
	Opened  = uint16(bellOpened | bellOwn)
	Segment = uint16(bellSegment)
)

// PlaceShift is where a bell has its place.
const PlaceShift = bellPlace

// ResetByPeer counts this end's streams that the peer has refused, as Open does.
func (s *Session) ResetByPeer() int { return len(s.resetByPeer()) }

// RingSizes are the bytes of the rings that there are.
var RingSizes = []int{firstRing, laterRing, bulkRing}

// HeaderSize is what stands before the bytes of a ring.
const HeaderSize = headerSize

// Put writes once to a ring, and Take reads once from it; they return how many
// bytes that was.
func Put(ring, p []byte) (int, error)  { return newWriterEnd(ring).put(p) }
func Take(ring, p []byte) (int, error) { return newReaderEnd(ring).take(p) }
