package store

import (
	"fmt"
	"sync/atomic"
)

// fund bounds the memory of requests that are being read, of all connections of
// a server together.
type fund struct {
	limit int64
	spent atomic.Int64
}

// allowance is what each request may take beside the fund, so that small ones
// are served even where large ones have used it up.
const allowance = 4 << 10

// purse is what one request has taken. One goroutine uses it at a time.
type purse struct {
	fund    *fund
	taken   int
	charged int64 // of that, from the fund
}

func (p *purse) take(n int) error {
	p.taken += n
	more := int64(p.taken-allowance) - p.charged
	if more <= 0 {
		return nil
	}
	if p.fund.spent.Add(more) > p.fund.limit {
		p.fund.spent.Add(-more)
		return fmt.Errorf("%w: requests of more than %d bytes are being read", ErrLimit, p.fund.limit)
	}
	p.charged += more
	return nil
}

// giveBack is called once, when the request is done with.
func (p *purse) giveBack() { p.fund.spent.Add(-p.charged) }
