//go:build !linux && !darwin

package flock

import (
	"errors"
	"os"
)

// Try returns false and errors.ErrUnsupported: this system has no such locks.
func Try(*os.File, bool) (bool, error) { return false, errors.ErrUnsupported }

// Unlock returns errors.ErrUnsupported: this system has no such locks.
func Unlock(*os.File) error { return errors.ErrUnsupported }
