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

	// Kept is called at the end of a transfer that was interrupted, for each file of which
	// the receiver has kept a part file with that number of bytes.
	Kept(name string, bytes int)
}

// File describes a file that was transferred completely.
type File struct {
	Name    string // relative to the directory, with slashes
	Bytes   int
	Found   int // of Bytes: the receiver had them before the transfer, and they were not sent
	Tensors int
	CRC32C  uint32 // of the whole file
}

// NoWatcher is a Watcher whose methods do nothing.
type NoWatcher struct{}

// Accepted does nothing. It implements Watcher.
func (NoWatcher) Accepted(int, int) {}

// Moved does nothing. It implements Watcher.
func (NoWatcher) Moved(int) {}

// Placed does nothing. It implements Watcher.
func (NoWatcher) Placed(File) {}

// Kept does nothing. It implements Watcher.
func (NoWatcher) Kept(string, int) {}
