package segment

// ReserveFile sets the size in bytes of the file with the descriptor fd and reserves all its pages.
// The error is an *Error.
func ReserveFile(fd int, size int64) error { return reserveFile(fd, size, []Extent{{0, int(size)}}) }
