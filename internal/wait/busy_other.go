//go:build !linux

package wait

import "time"

// rest blocks for restFor.
func rest() { <-time.NewTimer(restFor).C }

// visitor does nothing on this system.
type visitor struct{}

func (*visitor) visit() {}
func (*visitor) close() {}
