package agent

import (
	"maps"
	"slices"
	"sync"
)

// aside lists calls that are not in the table of any pipe, since they wait to get
// there, or are about to be done with.
type aside struct {
	mu  sync.Mutex
	all map[*CallInfo]struct{}
}

// enter lists a call until the returned function is called.
func (s *aside) enter(c *call, state CallState) (leave func()) {
	info := c.info(state)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[*CallInfo]struct{}{}
	}
	s.all[&info] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.all, &info)
	}
}

func (s *aside) list() []CallInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []CallInfo
	for info := range maps.Keys(s.all) {
		all = append(all, *info)
	}
	return all
}

func (s *aside) count(state CallState) int {
	return len(slices.DeleteFunc(s.list(), func(c CallInfo) bool { return c.State != state }))
}
