// Package cxx compiles C++ programs that use libtensorpipe: the peers of tests and the programs
// that benchmarks compare with. The sources of a [Program] are embedded in the Go program, so that
// it can be built on any machine with the compiler and the library.
package cxx

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
)

// flags are the compiler's options.
var flags = []string{"-std=c++17", "-O2", "-Wall", "-Wextra", "-pthread"}

// Program is a C++ program: all .cc files of one folder.
type Program struct {
	Name    string
	Sources fs.FS
	Folder  string // within Sources
}

// Build compiles the program, unless the user's cache directory has it from an earlier call with
// the same sources, and returns the path of the executable file. The error is a [*MissingError] if
// the machine lacks the compiler or the library's header, and a [*CompileError] if the compiler
// fails. Other errors are about the cache directory and files. After an error the path must not be
// used.
func (p Program) Build() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache directory for %s: %w", p.Name, err)
	}
	dir := filepath.Join(cache, "tensorpipe-interop")
	program := filepath.Join(dir, p.Name+"-"+p.fingerprint())
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	if err := checkToolchain(); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	return program, p.compile(dir, program)
}

// fingerprint returns the first 8 bytes of a SHA-256 hash of the architecture, the compiler's
// options and the program's sources, in hexadecimal.
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

// checkToolchain returns nil if the C++ compiler and the library's header are installed, and
// otherwise a [*MissingError]. It does not check that the library can be linked.
func checkToolchain() error {
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

// compile compiles the program in a temporary directory below dir, which it removes, and renames
// the result to the path program. The rename is atomic, because other processes may build the same
// program at the same time. The error is a [*CompileError] if the compiler fails, or an error of
// the file system.
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

// MissingError reports that the machine lacks the compiler or the library for a C++ program. It
// matches [errors.ErrUnsupported].
type MissingError struct{ What string }

func (e *MissingError) Error() string { return "cannot build the C++ peer: " + e.What }

// Is reports whether target is [errors.ErrUnsupported], so that the error matches it with
// errors.Is.
func (e *MissingError) Is(target error) bool { return target == errors.ErrUnsupported }

// CompileError reports that the compiler failed, and holds its output: the sources have errors, or the
// library has another version.
type CompileError struct {
	Program string
	Output  string
	Err     error
}

func (e *CompileError) Error() string {
	return "the C++ program " + e.Program + " does not compile: " + e.Err.Error() + "\n" + e.Output
}

// Unwrap returns e.Err, the error with which the compiler's process ended.
func (e *CompileError) Unwrap() error { return e.Err }
