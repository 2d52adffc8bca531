package cudaipc

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ptxInstructions has the operands of each instruction that kernels.ptx may use, as the documentation
// of PTX defines them for sm_50. A letter is one operand: p, a predicate; w, a register of 32 bits;
// q, one of 64 bits; f and d, floating-point registers; W and Q, an integer or a register; F and D, a
// floating-point literal; s, a special register of 32 bits; t, one of 64 bits; n, a parameter or
// shared variable; a, the address of a parameter; g, of device memory; h, of shared memory; l, a label.
var ptxInstructions = map[string]string{
	"mov.u32": "ws wn", "mov.u64": "qt qQ qn", "mov.f32": "fF", "mov.f64": "dD dd", "mov.b64": "dq qd",
	"cvt.u64.u32": "qw", "cvt.rn.f32.f64": "fd", "cvt.f64.f32": "df", "cvt.rni.f64.f64": "dd", "cvt.rni.s64.f64": "qd", "cvt.rn.f64.s64": "dq",
	"neg.f64": "dd", "abs.f64": "dd", "shr.u64": "qqW", "shr.s64": "qqW",
	"setp.eq.f64": "pdD", "setp.gt.f64": "pdd pdD", "setp.lt.f64": "pdd pdD", "setp.le.f64": "pdD", "setp.gtu.f64": "pdd", "setp.nan.f64": "pdd",
	"add.u64": "qqQ", "sub.u64": "qqQ", "div.u64": "qqQ", "mul.lo.u64": "qqQ", "mad.lo.u64": "qqQq",
	"mad.lo.u32": "wwWw", "mad.wide.u32": "qwwq", "shl.b64": "qqW", "shr.u32": "wwW",
	"add.rn.f32": "fff", "mul.rn.f32": "fff", "div.rn.f32": "fff", "fma.rn.f32": "ffff", "sqrt.rn.f32": "ff",
	"add.rn.f64": "ddd ddD", "mul.rn.f64": "ddd ddD", "div.rn.f64": "ddd", "fma.rn.f64": "dddd dddD ddDd", "sqrt.rn.f64": "dd",
	"setp.eq.u32": "pwW", "setp.ne.u32": "pwW", "setp.ge.u32": "pwW",
	"setp.eq.u64": "pqQ", "setp.ne.u64": "pqQ", "setp.ge.u64": "pqQ", "setp.lt.u64": "pqQ",
	"ld.param.u64": "qa", "ld.param.f64": "da",
	"ld.global.u8": "qg", "ld.global.u16": "qg", "ld.global.u32": "qg", "ld.global.u64": "qg", "ld.global.f32": "fg", "ld.global.f64": "dg",
	"st.global.u8": "gq", "st.global.u16": "gq", "st.global.u32": "gq", "st.global.u64": "gq", "st.global.f32": "gf", "st.global.f64": "gd",
	"ld.shared.f32": "fh", "ld.shared.f64": "dh", "st.shared.f32": "hf", "st.shared.f64": "hd",
	"bar.sync": "W", "bra": "l", "ret": "",
}

// ptxEntry is one kernel of a text in PTX.
type ptxEntry struct {
	name      string
	params    map[string]string // types by name
	order     []string          // the names of params
	registers map[string]string // classes by name: p, w, q, f or d
	shared    map[string]bool
	labels    map[string]int // the number of the instruction that follows
	code      []string
	used      map[string]bool
}

var (
	ptxComment  = regexp.MustCompile(`//[^\n]*`)
	ptxEntryRE  = regexp.MustCompile(`\.visible \.entry (\w+)\(([^)]*)\)\s*\{([^}]*)\}`)
	ptxParam    = regexp.MustCompile(`^\.param (\.u64|\.f64|\.align 8 \.b8) (\w+)(?:\[(\d+)\])?$`)
	ptxShared   = regexp.MustCompile(`^\.shared \.align (?:4 \.f32|8 \.f64) (\w+)\[256\]$`)
	ptxLabel    = regexp.MustCompile(`^(\w+):\s*`)
	ptxGuard    = regexp.MustCompile(`^@!?(%\w+) `)
	ptxAddress  = regexp.MustCompile(`^\[(%?\w+)(?:\+\d+)?\]$`)
	ptxLiteral  = map[byte]*regexp.Regexp{'F': regexp.MustCompile(`^0f[0-9a-f]{8}$`), 'D': regexp.MustCompile(`^0d[0-9a-f]{16}$`)}
	ptxClass    = map[string]string{".pred": "p", ".b32": "w", ".b64": "q", ".f32": "f", ".f64": "d"}
	ptxSpecial  = map[byte][]string{'s': {"%ctaid.x", "%nctaid.x", "%ntid.x", "%tid.x"}, 't': {"%globaltimer"}}
	ptxRegister = regexp.MustCompile(`^%[a-z]\w*$`)
)

// parsePTX returns the kernels of a text, or an error for text outside of them but the header.
func parsePTX(text string) ([]*ptxEntry, error) {
	text = ptxComment.ReplaceAllString(text, "")
	rest := strings.Fields(ptxEntryRE.ReplaceAllString(text, ""))
	if header := strings.Join(rest, " "); header != ".version 6.4 .target sm_50 .address_size 64" {
		return nil, fmt.Errorf("header or other text: %q", header)
	}
	var out []*ptxEntry
	for _, m := range ptxEntryRE.FindAllStringSubmatch(text, -1) {
		e := &ptxEntry{name: m[1], params: map[string]string{}, registers: map[string]string{}, shared: map[string]bool{}, labels: map[string]int{}, used: map[string]bool{}}
		for p := range strings.SplitSeq(m[2], ",") {
			param := ptxParam.FindStringSubmatch(strings.TrimSpace(p))
			if param == nil {
				return nil, fmt.Errorf("%s: parameter %q", e.name, p)
			}
			e.params[param[2]], e.order = param[1], append(e.order, param[2])
			if n, _ := strconv.Atoi(param[3]); (param[1] == ".align 8 .b8") != (n == 24*maxKernelRank) {
				return nil, fmt.Errorf("%s: size of parameter %q", e.name, p)
			}
		}
		if err := e.parse(m[3]); err != nil {
			return nil, fmt.Errorf("%s: %w", e.name, err)
		}
		out = append(out, e)
	}
	return out, nil
}

// parse reads the declarations, labels and instructions of a kernel.
func (e *ptxEntry) parse(body string) error {
	statements := strings.Split(body, ";")
	if last := strings.TrimSpace(statements[len(statements)-1]); last != "" {
		return fmt.Errorf("no semicolon after %q", last)
	}
	for _, s := range statements[:len(statements)-1] {
		s = strings.TrimSpace(s)
		for m := ptxLabel.FindString(s); m != ""; m = ptxLabel.FindString(s) {
			name := ptxLabel.FindStringSubmatch(s)[1]
			if _, twice := e.labels[name]; twice {
				return fmt.Errorf("label %s twice", name)
			}
			e.labels[name] = len(e.code)
			s = s[len(m):]
		}
		kind, names, _ := strings.Cut(strings.TrimPrefix(s, ".reg "), " ")
		switch m := ptxShared.FindStringSubmatch(s); {
		case m != nil:
			e.shared[m[1]] = true
		case strings.HasPrefix(s, ".reg "):
			for name := range strings.SplitSeq(names, ",") {
				name = strings.TrimSpace(name)
				if e.registers[name] != "" || ptxClass[kind] == "" || !ptxRegister.MatchString(name) {
					return fmt.Errorf("register %s %s", kind, name)
				}
				e.registers[name] = ptxClass[kind]
			}
		default:
			e.code = append(e.code, s)
		}
	}
	return nil
}

// check returns an error unless all instructions are valid, everything declared is used, and the last
// instruction returns.
func (e *ptxEntry) check() error {
	for _, s := range e.code {
		if m := ptxGuard.FindStringSubmatch(s); m != nil {
			if !e.is('p', m[1]) {
				return fmt.Errorf("guard of %q", s)
			}
			s = s[len(m[0]):]
		}
		name, list, _ := strings.Cut(s, " ")
		var operands []string
		if list != "" {
			operands = strings.Split(list, ", ")
		}
		forms, known := ptxInstructions[name]
		if !known || !slices.ContainsFunc(strings.Split(forms, " "), func(form string) bool { return e.matches(form, operands) }) {
			return fmt.Errorf("instruction %q", s)
		}
	}
	for _, declared := range []map[string]bool{keys(e.registers), keys(e.params), e.shared, keys(e.labels)} {
		for name := range declared {
			if !e.used[name] {
				return fmt.Errorf("%s is not used", name)
			}
		}
	}
	if len(e.code) == 0 || e.code[len(e.code)-1] != "ret" {
		return fmt.Errorf("the last instruction does not return")
	}
	return nil
}

func keys[V any](m map[string]V) map[string]bool {
	out := map[string]bool{}
	for name := range m {
		out[name] = true
	}
	return out
}

func (e *ptxEntry) matches(form string, operands []string) bool {
	if len(form) != len(operands) {
		return false
	}
	for i, o := range operands {
		if !e.is(form[i], o) {
			return false
		}
	}
	return true
}

// is reports whether o is an operand of that kind, and marks its name as used.
func (e *ptxEntry) is(kind byte, o string) bool {
	ok := false
	switch kind {
	case 'W', 'Q':
		if _, err := strconv.ParseUint(o, 10, 31); err == nil {
			return true
		}
		return e.is(kind+'a'-'A', o)
	case 'F', 'D':
		return ptxLiteral[kind].MatchString(o)
	case 's', 't':
		return slices.Contains(ptxSpecial[kind], o)
	case 'n':
		ok = e.shared[o] || e.params[o] == ".align 8 .b8"
	case 'l':
		_, ok = e.labels[o]
	case 'a', 'g', 'h':
		m := ptxAddress.FindStringSubmatch(o)
		if m == nil {
			return false
		}
		o = m[1]
		class := e.registers[o]
		ok = class == "q" && kind != 'h' || class == "w" && kind == 'h' || e.params[o] != "" && kind == 'a'
	default:
		ok = e.registers[o] == string(kind)
	}
	e.used[o] = e.used[o] || ok
	return ok
}

// The kernels follow the rules of PTX that this package can check.
func TestPTX(t *testing.T) {
	entries, err := parsePTX(string(kernelText))
	require.NoError(t, err)
	require.Len(t, entries, 20)
	for _, e := range entries {
		require.NoError(t, e.check(), e.name)
	}

	// The check finds faults.
	good := ".version 6.4\n.target sm_50\n.address_size 64\n.visible .entry k(.param .u64 a, .param .f64 b)\n" +
		"{\n.reg .pred %p;\n.reg .b64 %x;\n.reg .f64 %y;\nld.param.u64 %x, [a];\nld.param.f64 %y, [b];\nsetp.eq.u64 %p, %x, 0;\n@%p bra END;\nst.global.f64 [%x], %y;\nEND:\nret;\n}\n"
	check := func(text string) error {
		entries, err := parsePTX(text)
		if err != nil {
			return err
		}
		require.Len(t, entries, 1)
		return entries[0].check()
	}
	require.NoError(t, check(good))
	for _, c := range [][2]string{
		{"%p, %x, 0", "%p, %y, 0"}, {"bra END", "bra DONE"}, {"[a]", "[c]"}, {"ret;", ""}, {".reg .b64 %x;", ""}, {"%y;\nld", "%y, %z;\nld"},
		{"st.global.f64", "st.global.f32"}, {"setp.eq.u64", "setp.eq"}, {"@%p", "@%x"}, {".f64 b", ".f32 b"}, {"END:", "END:\nEND:"}, {"[%x], %y;", "[%x], %y"},
		{".version 6.4", ".version 9.9"}, {"[%x], %y", "[%x]"},
	} {
		require.Error(t, check(strings.Replace(good, c[0], c[1], 1)), c)
	}
}

// NVIDIA's assembler accepts the kernels for old and new GPUs.
func TestPTXAssembles(t *testing.T) {
	assembler, err := exec.LookPath("ptxas")
	if err != nil {
		t.Skip("ptxas, a part of NVIDIA's toolkit, is not installed")
	}
	text := filepath.Join(t.TempDir(), "kernels.ptx")
	require.NoError(t, os.WriteFile(text, kernelText, 0o600))
	for _, arch := range []string{"sm_50", "sm_75", "sm_90"} {
		cmd := exec.CommandContext(t.Context(), assembler, "-arch="+arch, "-Werror", "-o", filepath.Join(t.TempDir(), "kernels.cubin"), text)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}

// Each kernel has a twin with the same parameters in the simulator, which compares them.
func TestKernelsAreSimulated(t *testing.T) {
	f := newFixture(t, Options{})
	g := f.gpus[0]
	require.NoError(t, g.enter())
	defer g.leave()
	entries, err := parsePTX(string(kernelText))
	require.NoError(t, err)
	for _, e := range entries {
		_, err := g.kernels.function(e.name)
		require.NoError(t, err, e.name)
	}
}
