package ferry

// Watcher is told how a transfer goes. Its methods are called from several
// goroutines and must return soon.
type Watcher interface {
	// Accepted: the receiver takes the transfer, and bytes begin to move.
	Accepted(files, bytes int)

	// Moved: so many bytes more have left, or are written to disk.
	Moved(bytes int)

	// Placed: a file is complete and stands under its name.
	Placed(f File)
}

// File is one that was placed.
type File struct {
	Name    string // relative to the directory, with slashes
	Bytes   int
	Tensors int
	CRC32C  uint32 // of the whole file
}

// Nobody is a Watcher that does not care.
type Nobody struct{}

// Accepted implements Watcher.
func (Nobody) Accepted(int, int) {}

// Moved implements Watcher.
func (Nobody) Moved(int) {}

// Placed implements Watcher.
func (Nobody) Placed(File) {}
