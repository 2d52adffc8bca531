package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
)

// outputFile is a file that a flag of bench names. It is opened before anything is measured, so that a
// bad path fails early, and written afterwards.
type outputFile struct {
	flag  string
	file  *os.File
	fresh bool // the file did not exist, or was empty
}

// openOutput opens the file at path, the value of flag. It returns nil, nil if path is empty. The
// content of an existing file is kept until write. The caller must call write or discard.
func openOutput(flag, path string) (*outputFile, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return &outputFile{flag: flag, file: f, fresh: info.Size() == 0}, nil
}

// write replaces the content of the file with that of from, and closes it. It does nothing if o is nil.
func (o *outputFile) write(from io.WriterTo) error {
	if o == nil {
		return nil
	}
	err := o.file.Truncate(0)
	if err == nil {
		_, err = from.WriteTo(o.file)
	}
	if err := cmp.Or(err, o.file.Close()); err != nil {
		return fmt.Errorf("%s: %w", o.flag, err)
	}
	return nil
}

// discard closes the file, and removes it if it was empty or did not exist. It does nothing if o is nil.
func (o *outputFile) discard() {
	if o == nil {
		return
	}
	_ = o.file.Close()
	if o.fresh {
		_ = os.Remove(o.file.Name())
	}
}
