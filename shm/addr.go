package shm

import "strings"

// maxName is what the kernel takes as the name of an abstract socket, in bytes.
const maxName = 107

// checkName refuses what no listener can be called.
func checkName(name string) error {
	switch {
	case len(name) > maxName:
		return &AddrError{Addr: name, Reason: "a name has at most 107 bytes"}
	case strings.ContainsRune(name, 0):
		return &AddrError{Addr: name, Reason: "a name has no zero byte"}
	}
	return nil
}
