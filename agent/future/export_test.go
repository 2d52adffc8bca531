package future

// Watchers returns the number of registered watchers.
func (f *Future[T]) Watchers() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.watchers)
}
