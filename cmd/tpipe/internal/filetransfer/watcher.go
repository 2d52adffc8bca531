package filetransfer

// Watcher receives the progress of a transfer. Its methods are called from several goroutines
// and must not block.
type Watcher interface {
	// Accepted is called when the receiver has accepted the offer.
	Accepted(files, bytes int)

	// Moved is called after bytes more were sent, or written to disk.
	Moved(bytes int)

	// Placed is called when a file is complete and has its final name.
	Placed(f File)
}

// File describes a file that was transferred completely.
type File struct {
	Name    string // relative to the directory, with slashes
	Bytes   int
	Tensors int
	CRC32C  uint32 // of the whole file
}

// NoWatcher is a Watcher whose methods do nothing.
type NoWatcher struct{}

// Accepted implements Watcher.
func (NoWatcher) Accepted(int, int) {}

// Moved implements Watcher.
func (NoWatcher) Moved(int) {}

// Placed implements Watcher.
func (NoWatcher) Placed(File) {}
