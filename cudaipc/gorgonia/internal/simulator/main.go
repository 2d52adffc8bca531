// Command simulator builds the simulated driver and prints the folder that contains it, as
// libcuda.so.1 and under the name libcuda.so, by which the linker finds it.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/cusim"
)

func main() {
	dir, err := build()
	if err != nil {
		fmt.Fprintln(os.Stderr, "simulator:", err)
		os.Exit(1)
	}
	fmt.Println(dir)
}

func build() (dir string, err error) {
	library, err := cusim.Build("")
	if err != nil {
		return "", err
	}
	dir = filepath.Dir(library)
	err = os.Symlink(filepath.Base(library), filepath.Join(dir, "libcuda.so"))
	if errors.Is(err, fs.ErrExist) { // since the last time
		err = nil
	}
	return dir, err
}
