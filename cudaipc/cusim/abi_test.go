package cusim

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// nvidiaHeader returns the path of NVIDIA's cuda.h, or skips t.
func nvidiaHeader(t *testing.T) string {
	t.Helper()
	for _, path := range []string{os.Getenv("CUDA_HEADER"), "/usr/include/cuda.h", "/usr/local/cuda/include/cuda.h"} {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	t.Skip("no cuda.h of NVIDIA: set CUDA_HEADER to its path")
	return ""
}

// The constants, the sizes of types, and the functions of cuda_abi.h are those of NVIDIA's header.
func TestABI(t *testing.T) {
	header := nvidiaHeader(t)
	Library(t) // skips the test if there is no compiler
	abi, err := sources.ReadFile("src/cuda_abi.h")
	require.NoError(t, err)
	own := filepath.Join(t.TempDir(), "cuda_abi.h")
	require.NoError(t, os.WriteFile(own, abi, 0o600))

	program := printConstants(t, string(abi))
	require.Equal(t, runC(t, header, program), runC(t, own, program))

	_, prototypes, ok := strings.Cut(string(abi), "/* Prototypes: ")
	require.True(t, ok)
	prototypes, _, _ = strings.Cut("/* "+prototypes, "#pragma")
	require.Greater(t, strings.Count(prototypes, "CUresult cu"), 50)
	runC(t, header, prototypes+"int main(void) { return 0; }\n")
}

// printConstants returns a program that prints the constants that a header defines, and the sizes of
// its types.
func printConstants(t *testing.T, header string) string {
	t.Helper()
	var out strings.Builder
	out.WriteString("#include <stdint.h>\n#include <stdio.h>\nint main(void)\n{\n")
	constants := regexp.MustCompile(`(?m)^ +(CU\w+) = |^#define (CU_\w+) `).FindAllStringSubmatch(header, -1)
	require.Greater(t, len(constants), 50)
	for _, m := range constants {
		fmt.Fprintf(&out, "printf(\"%[1]s %%ju\\n\", (uintmax_t)(uintptr_t)(%[1]s));\n", m[1]+m[2])
	}
	typedef := regexp.MustCompile(`(?m)(?:^typedef .* \*?|^} |^typedef void \(\*)(CU\w+)(?:;|\))`)
	types := typedef.FindAllStringSubmatch(header, -1)
	require.Greater(t, len(types), 15)
	for _, m := range types {
		fmt.Fprintf(&out, "printf(\"%[1]s %%zu\\n\", sizeof(%[1]s));\n", m[1])
	}
	out.WriteString("return 0;\n}\n")
	return out.String()
}

// runC compiles a program that includes a header, and returns its output.
func runC(t *testing.T, header, text string) string {
	t.Helper()
	compiler, err := findCompiler()
	require.NoError(t, err)
	source := filepath.Join(t.TempDir(), "program.c")
	file := strings.TrimSuffix(source, ".c")
	// The macro keeps cuda.h from renaming functions to other versions.
	text = "#define __CUDA_API_VERSION_INTERNAL\n#include \"" + header + "\"\n" + text
	require.NoError(t, os.WriteFile(source, []byte(text), 0o600))
	args := slices.Concat(compiler[1:], []string{"-std=gnu11", "-Werror", "-o", file, source})
	out, err := exec.Command(compiler[0], args...).CombinedOutput()
	require.NoError(t, err, string(out))
	out, err = exec.Command(file).Output()
	require.NoError(t, err)
	return string(out)
}
