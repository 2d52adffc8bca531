package cma

import (
	"time"
)

// A pool tests periodically whether one worker more, or one less, would be better: for exploreChunks
// out of every explorePeriod chunks.
const (
	explorePeriod = 128
	exploreChunks = 4
)

// meanWindow is the number of chunks in a running mean: few enough that two tests change it. The
// throughput of memory varies with the pages and with other activity of the machine.
const meanWindow = 6

// tuner determines how many workers of a pool increase the throughput. If memory is in small pages the
// system spends its time on page tables, and two workers copy nearly twice as much as one. In huge
// pages one worker may saturate the memory, and a second would only wait for it, on a processor that
// others need.
//
// The zero value begins with one worker, then allows all, and measures. The pool's mutex guards it.
type tuner struct {
	rates      []rate // rates[k] is the total rate while k+1 workers copy
	chunkCount int
}

// rate is a running mean in bytes per nanosecond.
type rate struct {
	mean float64
	n    int // number of values, at most meanWindow
}

func (r *rate) record(seen float64) {
	r.n = min(r.n+1, meanWindow)
	r.mean += (seen - r.mean) / float64(r.n)
}

// record adds a measurement to the mean rate of k concurrent workers: one of them copied a chunk of
// n bytes in the time took. k must be at least 1.
func (p *tuner) record(k, n int, took time.Duration) {
	for len(p.rates) < k {
		p.rates = append(p.rates, rate{})
	}
	p.rates[k-1].record(float64(k) * float64(n) / float64(max(took, 1)))
}

// countChunk counts a chunk that a worker has taken. allow uses the count to test other numbers of
// workers periodically.
func (p *tuner) countChunk() { p.chunkCount++ }

// allow reports whether one more worker should copy while k workers are copying. It always allows
// the first worker. It allows a further one if profitable returns true for k. For the first
// exploreChunks of every explorePeriod chunks it does the opposite, so that other numbers of
// workers are measured.
func (p *tuner) allow(k int) bool {
	trying := p.chunkCount%explorePeriod < exploreChunks
	return k == 0 || p.profitable(k) != trying
}

// profitable reports whether k+1 workers together are faster than k by at least four fifths of the
// rate of a single worker. It returns true if one of these three rates has not been measured. k
// must be at least 1.
func (p *tuner) profitable(k int) bool {
	if k >= len(p.rates) {
		return true
	}
	// The total rates of one worker, of k, and of one more.
	alone, before, after := p.rates[0], p.rates[k-1], p.rates[k]
	return alone.n == 0 || before.n == 0 || after.n == 0 || after.mean-before.mean >= alone.mean*4/5
}
