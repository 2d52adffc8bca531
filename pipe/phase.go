package pipe

// phase is what an opening is at, to complete "timed out while".
type phase string

// Phases of the end that dials, in order.
const (
	phaseDial   phase = "dialling"
	phaseOffer  phase = "sending what this end offers"
	phaseAnswer phase = "waiting for the answer"
	phaseTrial  phase = "saying which channels work"
	phaseMove   phase = "moving to the transport that was chosen"
	phaseJoin   phase = "opening the other connections"
)

// Phases of the end that listens, in order.
const (
	phasePacket   phase = "waiting for the first words"
	phaseBrochure phase = "waiting for what the peer offers"
	phaseReply    phase = "sending the answer"
	phaseVerdict  phase = "waiting to hear which channels work"
	phaseArrival  phase = "waiting for the connection that was moved"
	phaseOthers   phase = "waiting for the other connections"
)

// Phases of both, of which only the end that listens has the last.
const (
	phaseBuild  phase = "opening streams and channels"
	phaseAccept phase = "waiting for somebody who accepts the pipe"
)
