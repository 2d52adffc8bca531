package wait

import "time"

// Memory spins for somebody who waits until another process changes memory that
// both share. It has one user at a time, and counts in the same room as Readers.
type Memory struct{ spinner spinner }

// NewMemory returns a Memory that spins for so long at most; 0 or less is not
// at all.
func NewMemory(spin time.Duration) *Memory {
	epoch := time.Now()
	return &Memory{spinner{
		bound: spin,
		apart: new(apart),
		seat:  process.enter(),
		now:   func() time.Duration { return time.Since(epoch) },
		yield: offer,
	}}
}

// Find calls look until that finds something, and reports whether it did. Where
// it returns false, sleep is better.
func (m *Memory) Find(look func() bool) bool { return m.spinner.find(look) }

// FindDue is Find for who waits for one thing that is due, such as an answer: it spins
// whatever comes for others of this process, unless one of them waits like that.
func (m *Memory) FindDue(look func() bool) bool { return m.spinner.findDue(look) }

// Came notes that what was waited for came, be it found by a spin or not.
func (m *Memory) Came() { m.spinner.seat.came() }
