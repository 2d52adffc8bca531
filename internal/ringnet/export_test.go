package ringnet

// FirstSegment is the size of an end's first segment, RawSegment that of a Raw.
var (
	FirstSegment = segmentSize(0)
	RawSegment   = headerSize + rawRing
)

// Where the counters of the first ring of a segment are, and of that of a Raw.
const (
	FirstHead = placeHeader + atHead
	RawHead   = atHead
	RawTail   = atTail
)

// Bells that a peer may ring.
const (
	Opened  = uint16(bellOpened | bellOwn)
	Segment = uint16(bellSegment)
)

// PlaceShift is where a bell has its place.
const PlaceShift = bellPlace

// LaterSegment is the size of an end's further segments, and RawReader where a
// reader says that it sleeps.
var LaterSegment = segmentSize(firstPlaces)

const RawReader = atReader
