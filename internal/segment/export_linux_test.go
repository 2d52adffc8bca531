package segment

// ReserveFile sets the size of a file and reserves all its pages.
func ReserveFile(fd int, size int64) error { return reserveFile(fd, size, []Extent{{0, int(size)}}) }
