//go:build !linux

package hostile_test

import "testing"

// resident is not known here.
func resident(testing.TB) int { return 0 }
