package onesided

// Kept returns the number of transfers, descriptions and frames that e holds.
func (e *Engine) Kept() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.sends) + len(e.recvs) + len(e.unmatched) + e.unmatchedPieces + e.pulls.Len()
}
