package agent

// earlyCancels are the last cancels for requests that nobody here knows: most have been
// answered meanwhile, but another goroutine may be about to enlist one.
type earlyCancels struct {
	ids    [32]uint64 // 0 for none
	causes [32]error
	next   int // where the next one goes
}

func (e *earlyCancels) add(id uint64, cause error) {
	e.ids[e.next], e.causes[e.next] = id, cause
	e.next = (e.next + 1) % len(e.ids)
}

// take is why a request was cancelled before it was known, nil if it was not.
func (e *earlyCancels) take(id uint64) error {
	for i, other := range e.ids {
		if other == id && e.causes[i] != nil {
			cause := e.causes[i]
			e.ids[i], e.causes[i] = 0, nil
			return cause
		}
	}
	return nil
}
