package wait

import "runtime"

// lookAround is how often a spin on memory lets goroutines run: once in so many
// looks.
const lookAround = 64

// Yielder is what is done between two looks at memory. It belongs to one
// goroutine. The zero value is ready.
type Yielder struct{ looks int }

// Yield offers the processor to other threads, and now and then to other
// goroutines of this process.
func (y *Yielder) Yield() {
	y.looks++
	if y.looks%lookAround == 1 {
		runtime.Gosched()
		return
	}
	offer()
}
