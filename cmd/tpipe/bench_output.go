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

// openOutput opens the file at path for writing and creates it if it does not exist. It keeps the
// file's content until write is called. flag is the name of the flag with that path, for error
// messages. If path is empty it returns nil, nil. The caller must call write or discard.
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

// write replaces the content of the file with the bytes that from.WriteTo writes, and closes the
// file, also after an error. It does nothing and returns nil if o is nil.
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

// discard closes the file without writing to it, and removes it if it did not exist or was empty
// when it was opened. It ignores errors, and does nothing if o is nil.
func (o *outputFile) discard() {
	if o == nil {
		return
	}
	_ = o.file.Close()
	if o.fresh {
		_ = os.Remove(o.file.Name())
	}
}
