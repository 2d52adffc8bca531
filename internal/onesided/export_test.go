package onesided

// Kept returns the sum of the numbers of transfers, unmatched descriptions and their pieces, and
// queued pulls that e holds. It is 0 if e retains nothing.
func (e *Engine) Kept() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.sends) + len(e.recvs) + len(e.unmatched) + e.unmatchedPieces + e.pulls.Len()
}
