//go:build !linux && !darwin

package flock

import (
	"errors"
	"os"
)

// Try fails: this system has no such locks.
func Try(*os.File, bool) (bool, error) { return false, errors.ErrUnsupported }

// Unlock fails: this system has no such locks.
func Unlock(*os.File) error { return errors.ErrUnsupported }
