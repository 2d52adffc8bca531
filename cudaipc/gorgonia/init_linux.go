package gorgonia

// The linker applies this option to the whole program; see init_linux.c.

// #cgo LDFLAGS: -Wl,--wrap=cuInit
import "C"
