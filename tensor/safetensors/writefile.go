package safetensors

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// WriteFile writes tensors and metadata to a file, as Encode does. The name
// stands for the old contents, or for nothing, until the new ones are complete
// and on disk; a file cut short never stands under it. What is left of a
// process that was killed has the name with a number and ".tmp" behind it.
func WriteFile(path string, tensors map[string]*tensor.Tensor, metadata map[string]string) error {
	temporary := fmt.Sprintf("%s.%016x.tmp", path, rand.Uint64())
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	err = errors.Join(writeSynced(f, tensors, metadata), f.Close())
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	return syncDirectory(filepath.Dir(path))
}

// writeSynced writes to f and waits until the bytes are on disk.
func writeSynced(f *os.File, tensors map[string]*tensor.Tensor, metadata map[string]string) error {
	if err := Encode(io.Writer(f), tensors, metadata); err != nil {
		return err
	}
	return f.Sync()
}

// syncDirectory makes a new name in a directory survive a crash.
func syncDirectory(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
