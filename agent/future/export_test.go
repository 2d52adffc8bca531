package future

// Watchers returns the number of watchers that are registered with f.
func (f *Future[T]) Watchers() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.watchers)
}
