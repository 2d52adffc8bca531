package mux

// judge holds the messages of the peer against the rules, one after the other.
// What a window allows is not its business.
type judge struct {
	client bool   // this end is
	newest uint32 // the last stream that the peer opened
}

// admit returns a [ProtocolError] for a message that no peer may send.
func (j *judge) admit(h *header) error {
	switch {
	case h.version() != 0:
		return violation("version %d", h.version())
	case h.kind() > farewell:
		return violation("message of kind %d", h.kind())
	case h.body() > maxBody:
		return violation("%d bytes in one message, %d are allowed", h.body(), maxBody)
	case h.kind() == farewell && h.length() != 0:
		return violation("it ends the session with code %d", h.length())
	case h.opens():
		return j.admitStream(h.stream())
	}
	return nil
}

// admitStream wants the numbers of new streams to grow, and to be even where
// the server opened them.
func (j *judge) admitStream(number uint32) error {
	if even := number%2 == 0; even != j.client {
		return violation("new stream with number %d of this end", number)
	}
	if number <= j.newest {
		return violation("new stream with number %d after %d", number, j.newest)
	}
	j.newest = number
	return nil
}
