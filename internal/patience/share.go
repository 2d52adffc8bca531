package patience

import "time"

// stretches is how many a process gets for one in which nothing else is counted as its
// own: time that the machine spends elsewhere can be.
const stretches = 10

// Share is which part of a core this process takes while its caller waits: 0.01 is a
// percent. It is the least of up to ten stretches of that length, and the first that
// is less than enough.
func Share(stretch time.Duration, enough float64) float64 { return share(stretch, enough, used) }

func share(stretch time.Duration, enough float64, used func() time.Duration) (least float64) {
	for i := range stretches {
		before := used()
		passed := time.NewTimer(stretch)
		<-passed.C
		part := float64(used()-before) / float64(stretch)
		if i == 0 || part < least {
			least = part
		}
		if least < enough {
			break
		}
	}
	return least
}
