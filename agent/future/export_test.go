package future

// Watchers is how many wait for f other than by its channel.
func (f *Future[T]) Watchers() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.watchers)
}
