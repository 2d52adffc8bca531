package segment

// SetAside makes a file so large and gives all of it pages.
func SetAside(fd int, size int64) error { return setAside(fd, size, []Extent{{0, int(size)}}) }
