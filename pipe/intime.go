package pipe

import "context"

// inTime reports whether one of two channels, of which either may be nil, is closed
// before ctx ends. Where that is so when this end comes to look, it does not matter that the
// time is over too: nobody was waited for in vain.
func inTime(ctx context.Context, one, other <-chan struct{}) bool {
	select {
	case <-one:
		return true
	case <-other:
		return true
	case <-ctx.Done():
		return isClosed(one) || isClosed(other)
	}
}
