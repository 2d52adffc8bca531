package ringnet

// FirstSegment is the size of an end's first segment, LaterSegment that of each
// further one.
var (
	FirstSegment = segmentSize(0)
	LaterSegment = segmentSize(firstPlaces)
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
