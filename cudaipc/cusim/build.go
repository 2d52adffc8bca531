package cusim

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

//go:embed src/*.c src/*.h src/stubs.txt src/replay/*.c src/replay/*.h
var sources embed.FS

// flags are the compiler's options. Products and sums are not fused, so that kernels give the same
// result on all processors.
var flags = []string{
	"-std=c11", "-D_GNU_SOURCE", "-O3", "-g", "-Wall", "-Wextra", "-pthread", "-fPIC",
	"-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno",
}

// mathLibrary is the compiler's option for the library with the functions that kernels compute.
const mathLibrary = "-lm"

// notSupported is the reason of a [*MissingError] on other systems.
const notSupported = "it runs on Linux on amd64 and arm64 only"

// libraryName is the file name of the simulator, which is that of NVIDIA's driver.
const libraryName = "libcuda.so.1"

// Build compiles the simulator and returns the path of its libcuda.so.1. The file is in a folder
// below dir, or below the user's cache directory if dir is "", whose name depends on the sources and
// the compiler; a later call returns the same file without compiling. Several processes may build at
// the same time. A call that compiles removes the folders that no call has returned for a week.
//
// The error is a [*MissingError] if the machine has no C compiler or is not Linux, and a
// [*CompileError] if the compiler fails. Other errors are about files.
func Build(dir string) (string, error) {
	return program{name: libraryName, flags: []string{"-shared", "-Wl,-soname," + libraryName}}.build(dir)
}

// program is something that is compiled from the sources.
type program struct {
	name   string
	flags  []string // in addition to the common ones
	replay bool     // with the sources in src/replay
}

// build returns the path of the compiled program. See [Build].
func (p program) build(dir string) (string, error) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		return "", &MissingError{notSupported}
	}
	compiler, err := findCompiler()
	if err != nil {
		return "", err
	}
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("cusim: no cache directory: %w", err)
		}
		dir = filepath.Join(cache, "tensorpipe-cusim")
	}
	target := filepath.Join(dir, p.fingerprint(compiler))
	file := filepath.Join(target, p.name)
	if use(target, file, time.Now()) {
		return file, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(dir, "build-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	if err := p.compile(compiler, work); err != nil {
		return "", err
	}
	// The rename is atomic. It fails if another process has built the same in the meantime.
	if err := os.Rename(filepath.Join(work, "out"), target); err != nil {
		if _, statErr := os.Stat(file); statErr != nil {
			return "", err
		}
	}
	removeUnused(dir, time.Now())
	return file, nil
}

// findCompiler returns the command of the C compiler: $CC with its arguments, or else the first of
// cc, gcc and clang.
func findCompiler() ([]string, error) {
	if cc := strings.Fields(os.Getenv("CC")); len(cc) > 0 {
		if _, err := exec.LookPath(cc[0]); err != nil {
			return nil, &MissingError{"no C compiler: CC=" + cc[0] + " is not installed"}
		}
		return cc, nil
	}
	for _, name := range []string{"cc", "gcc", "clang"} {
		if _, err := exec.LookPath(name); err == nil {
			return []string{name}, nil
		}
	}
	return nil, &MissingError{"no C compiler: cc, gcc and clang are not installed"}
}

// fingerprint returns the first 8 bytes of a SHA-256 hash of everything that the compiled program
// depends on, in hexadecimal.
func (p program) fingerprint(compiler []string) string {
	hash := sha256.New()
	fmt.Fprintln(hash, runtime.GOARCH, compiler, flags, mathLibrary, p.name, p.flags, p.replay)
	_ = fs.WalkDir(sources, ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			text, _ := sources.ReadFile(path)
			fmt.Fprintln(hash, path, len(text))
			hash.Write(text)
		}
		return nil
	})
	return hex.EncodeToString(hash.Sum(nil)[:8])
}

// compile compiles the program to the file out/p.name below the folder work.
func (p program) compile(compiler []string, work string) error {
	if err := os.CopyFS(work, sources); err != nil {
		return err
	}
	stubs, err := stubSource()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(work, "src", "stubs.c"), stubs, 0o600); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(work, "src", "*.c"))
	if err != nil {
		return err
	}
	if p.replay {
		more, err := filepath.Glob(filepath.Join(work, "src", "replay", "*.c"))
		if err != nil {
			return err
		}
		files = append(files, more...)
	}
	if err := os.Mkdir(filepath.Join(work, "out"), 0o700); err != nil {
		return err
	}
	args := append(append([]string{}, compiler[1:]...), flags...)
	args = append(args, p.flags...)
	args = append(args, "-o", filepath.Join(work, "out", p.name))
	cmd := exec.Command(compiler[0], append(append(args, files...), mathLibrary)...)
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	if err := cmd.Run(); err != nil {
		return &CompileError{Output: text.String(), Err: err}
	}
	return nil
}

// stubSource returns C source with a function for each name in stubs.txt.
func stubSource() ([]byte, error) {
	names, err := sources.ReadFile("src/stubs.txt")
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	fmt.Fprintln(&out, "#include \"sim.h\"\n#pragma GCC visibility push(default)")
	for name := range strings.FieldsSeq(string(names)) {
		fmt.Fprintf(&out, "CUresult %s(void);\nCUresult %s(void) { return cusim_not_simulated(\"%s\"); }\n", name, name, name)
	}
	return out.Bytes(), nil
}

// MissingError reports that the machine cannot build or run the simulator. It matches
// [errors.ErrUnsupported].
type MissingError struct{ Reason string }

func (e *MissingError) Error() string { return "cusim: " + e.Reason }

// Is reports whether target is [errors.ErrUnsupported], so that the error matches it with
// errors.Is.
func (e *MissingError) Is(target error) bool { return target == errors.ErrUnsupported }

// CompileError reports that the compiler failed, and holds its output.
type CompileError struct {
	Output string
	Err    error
}

func (e *CompileError) Error() string {
	return "cusim: the simulator does not compile: " + e.Err.Error() + "\n" + e.Output
}

// Unwrap returns e.Err, the error with which the compiler's process ended.
func (e *CompileError) Unwrap() error { return e.Err }
