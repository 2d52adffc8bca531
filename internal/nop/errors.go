package nop

import "fmt"

// Error says where and why bytes are not the value that was asked for: the
// peer speaks another protocol or is broken, and the connection that carried
// the bytes cannot be trusted any more.
type Error struct {
	Offset int    // where the offending piece starts, in bytes
	What   string // what is wrong with it
}

func (e *Error) Error() string {
	return fmt.Sprintf("nop: byte %d: %s", e.Offset, e.What)
}
