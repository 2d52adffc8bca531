package dist

import (
	"slices"
	"sort"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// Bounds of endedContexts. Beyond them the oldest are forgotten.
const (
	maxEndedCreators = 256
	maxEndedRanges   = 4096 // of each creator
)

// endedContexts are Contexts of other workers that have ended, so that a late message does not bring them
// back. The numbers that a creator gives follow each other, so that ranges of them take little memory. The
// zero value is empty.
type endedContexts struct {
	ranges map[agent.Incarnation][]idRange // by creator, in order; no two touch
	order  fifo.Queue[agent.Incarnation]   // the creators
}

// idRange is the numbers from first to last.
type idRange struct{ first, last ID }

// find returns the index of the first range that ends at id or after it.
func find(all []idRange, id ID) int {
	return sort.Search(len(all), func(i int) bool { return all[i].last >= id })
}

func (e *endedContexts) has(id ID, creator agent.Incarnation) bool {
	all := e.ranges[creator]
	i := find(all, id)
	return i < len(all) && all[i].first <= id
}

// add adds a Context.
func (e *endedContexts) add(id ID, creator agent.Incarnation) {
	all, ok := e.ranges[creator]
	if !ok {
		if e.ranges == nil {
			e.ranges = map[agent.Incarnation][]idRange{}
		}
		if e.order.Len() >= maxEndedCreators {
			delete(e.ranges, e.order.Pop())
		}
		e.order.Push(creator)
	}
	i := find(all, id)
	if i < len(all) && all[i].first <= id {
		return
	}
	joinsLeft := i > 0 && all[i-1].last+1 == id
	joinsRight := i < len(all) && all[i].first == id+1
	switch {
	case joinsLeft && joinsRight:
		all[i-1].last = all[i].last
		all = slices.Delete(all, i, i+1)
	case joinsLeft:
		all[i-1].last = id
	case joinsRight:
		all[i].first = id
	default:
		all = slices.Insert(all, i, idRange{id, id})
	}
	if len(all) > maxEndedRanges {
		all = slices.Delete(all, 0, 1)
	}
	e.ranges[creator] = all
}
