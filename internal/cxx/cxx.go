// Package cxx compiles C++ programs that stand for the other end of a pipe: the
// peers that tests talk to and that benchmarks are compared with. A [Program]
// carries its sources inside the Go program, so that it can be built wherever
// the machine has the compiler and the library.
package cxx

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
)

// flags are what the compiler gets besides the files.
var flags = []string{"-std=c++17", "-O2", "-Wall", "-Wextra", "-pthread"}

// Program is a C++ program on libtensorpipe: all .cc files of one folder.
type Program struct {
	Name    string
	Sources fs.FS
	Folder  string // within Sources
}

// Build compiles the program unless that was done before, and returns its path.
// It is kept in the user's cache under a hash of its sources. Where the machine
// lacks the compiler or the library the error is a [*MissingError].
func (p Program) Build() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no place to keep %s: %w", p.Name, err)
	}
	dir := filepath.Join(cache, "tensorpipe-interop")
	program := filepath.Join(dir, p.Name+"-"+p.fingerprint())
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	if err := machineReady(); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	return program, p.compile(dir, program)
}

// fingerprint names a build: the same name means the same program.
func (p Program) fingerprint() string {
	hash := sha256.New()
	fmt.Fprintln(hash, runtime.GOARCH, flags)
	_ = fs.WalkDir(p.Sources, p.Folder, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			text, _ := fs.ReadFile(p.Sources, path)
			fmt.Fprintln(hash, path, len(text))
			hash.Write(text)
		}
		return nil
	})
	return hex.EncodeToString(hash.Sum(nil)[:8])
}

// machineReady tells what is missing apart from sources that do not compile.
func machineReady() error {
	if _, err := exec.LookPath("g++"); err != nil {
		return &MissingError{"g++ is not installed"}
	}
	probe := exec.Command("g++", "-std=c++17", "-E", "-x", "c++", "-o", os.DevNull, "-")
	probe.Stdin = strings.NewReader("#include <tensorpipe/tensorpipe.h>\n")
	if err := probe.Run(); err != nil {
		return &MissingError{"the header tensorpipe/tensorpipe.h is not installed (Debian: libtensorpipe-dev)"}
	}
	return nil
}

// compile builds in a directory of its own and moves the result into place:
// other processes may be doing the same.
func (p Program) compile(dir, program string) error {
	work, err := os.MkdirTemp(dir, "build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := os.CopyFS(work, p.Sources); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(work, filepath.FromSlash(path.Join(p.Folder, "*.cc"))))
	if err != nil {
		return err
	}
	out := filepath.Join(work, p.Name)
	args := append(append([]string{"-o", out}, flags...), files...)
	cmd := exec.Command("g++", append(args, "-ltensorpipe")...)
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	if err := cmd.Run(); err != nil {
		return &CompileError{Program: p.Name, Output: text.String(), Err: err}
	}
	return os.Rename(out, program)
}
