package cxx

import "errors"

// MissingError says what the machine lacks to build a C++ program. It matches
// [errors.ErrUnsupported].
type MissingError struct{ What string }

func (e *MissingError) Error() string { return "cannot build the C++ peer: " + e.What }

// Is makes the error match [errors.ErrUnsupported].
func (e *MissingError) Is(target error) bool { return target == errors.ErrUnsupported }

// CompileError holds what the compiler said about sources that it refused: a
// mistake in the sources, or another version of the library than they are for.
type CompileError struct {
	Program string
	Output  string
	Err     error
}

func (e *CompileError) Error() string {
	return "the C++ program " + e.Program + " does not compile: " + e.Err.Error() + "\n" + e.Output
}

// Unwrap returns how the compiler ended.
func (e *CompileError) Unwrap() error { return e.Err }
