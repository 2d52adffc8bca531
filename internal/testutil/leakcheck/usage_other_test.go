//go:build !linux

package leakcheck

import "testing"

func leakDescriptor(t *testing.T) { t.Skip("descriptors are checked on Linux only: no /proc here") }

func leakMapping(t *testing.T) { t.Skip("mappings are checked on Linux only: no /proc here") }
