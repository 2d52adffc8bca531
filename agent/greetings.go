package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// greetings are the pipes whose other ends have not shown yet that they know the token.
// Whoever reaches the address can open them and say nothing. Where there are too many the
// oldest gives way: a member needs some round trips, and does not have to wait until
// others have had their time.
type greetings struct {
	most int
	mu   sync.Mutex
	all  []greeting // the oldest first
}

type greeting struct {
	line *pipe.Pipe
	end  context.CancelCauseFunc // of the context in which it is met
}

// errCrowded ends a pipe that gives way to others.
var errCrowded = fmt.Errorf("%w: others came, and it has not shown that it knows the token", ErrRefused)

// begin adds a greeting.
func (s *greetings) begin(g greeting) {
	if oldest, crowded := s.add(g); crowded {
		oldest.end(errCrowded)
		oldest.line.Abort(errCrowded)
	}
}

func (s *greetings) add(g greeting) (oldest greeting, crowded bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, g)
	if len(s.all) <= s.most {
		return greeting{}, false
	}
	oldest = s.all[0]
	s.all = slices.Delete(s.all, 0, 1)
	return oldest, true
}

// over says that a pipe gives way to no other from now on: its end has shown that it knows
// the token, or the pipe has ended. It reports false if the pipe has given way before.
func (s *greetings) over(line *pipe.Pipe) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.all)
	s.all = slices.DeleteFunc(s.all, func(g greeting) bool { return g.line == line })
	return len(s.all) < before
}
