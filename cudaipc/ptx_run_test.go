package cudaipc

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// memoryBase is the address of the first byte of the memory of runs.
const memoryBase = 1 << 20

// run executes the kernel as a GPU does, thread after thread: it interprets its text. params are the
// values of the parameters in their order. It cannot execute kernels whose threads wait for each other,
// or that read lists of dimensions.
func (e *ptxEntry) run(memory []byte, blocks, threads int, params []uint64) error {
	if len(params) != len(e.order) {
		return fmt.Errorf("%s has %d parameters", e.name, len(e.order))
	}
	code := e.decode()
	for block := range blocks {
		for thread := range threads {
			th := &ptxThread{entry: e, code: code, memory: memory, values: map[string]uint64{
				"%ctaid.x": uint64(block), "%ntid.x": uint64(threads), "%tid.x": uint64(thread),
			}}
			for i, name := range e.order {
				th.values[name] = params[i]
			}
			if err := th.run(); err != nil {
				return fmt.Errorf("%s, thread %d of block %d: %w", e.name, thread, block, err)
			}
		}
	}
	return nil
}

// ptxInstruction is one instruction, which is executed if its guard, a register, is not 0, or is 0.
type ptxInstruction struct {
	guard    string // or empty
	negated  bool
	name     string
	operands []string
}

// decode returns the instructions of the kernel.
func (e *ptxEntry) decode() []ptxInstruction {
	out := make([]ptxInstruction, len(e.code))
	for i, s := range e.code {
		if m := ptxGuard.FindStringSubmatch(s); m != nil {
			s = s[len(m[0]):]
			out[i].guard, out[i].negated = m[1], strings.HasPrefix(m[0], "@!")
		}
		name, list, _ := strings.Cut(s, " ")
		out[i].name, out[i].operands = name, strings.Split(list, ", ")
	}
	return out
}

// ptxThread is one thread. values has the bits of registers, and the parameters.
type ptxThread struct {
	entry  *ptxEntry
	code   []ptxInstruction
	memory []byte
	values map[string]uint64
}

// maxSteps bounds the instructions of a thread.
const maxSteps = 10_000

func (th *ptxThread) run() error {
	next := 0
	for range maxSteps {
		in := &th.code[next]
		next++
		switch {
		case in.guard != "" && (th.values[in.guard] != 0) == in.negated:
		case in.name == "ret":
			return nil
		case in.name == "bra":
			next = th.entry.labels[in.operands[0]]
		default:
			if err := th.execute(in.name, in.operands); err != nil {
				return fmt.Errorf("%s %v: %w", in.name, in.operands, err)
			}
		}
	}
	return fmt.Errorf("more than %d instructions", maxSteps)
}

// execute executes an instruction that is no branch.
func (th *ptxThread) execute(name string, operands []string) error {
	switch kind, rest, _ := strings.Cut(name, "."); {
	case kind == "ld" && strings.HasPrefix(rest, "param."):
		th.values[operands[0]] = th.values[strings.Trim(operands[1], "[]")]
		return nil
	case kind == "ld" || kind == "st":
		at := 0
		if kind == "ld" {
			at = 1
		}
		width, _ := strconv.Atoi(name[len(name)-2:])
		address := th.values[strings.Trim(operands[at], "[]")] - memoryBase
		if address > uint64(len(th.memory)-width/8) {
			return fmt.Errorf("no memory at %#x", address+memoryBase)
		}
		word := th.memory[address:][:width/8]
		var all [8]byte
		if kind == "ld" {
			copy(all[:], word)
			th.values[operands[0]] = binary.LittleEndian.Uint64(all[:])
		} else {
			binary.LittleEndian.PutUint64(all[:], th.values[operands[1]])
			copy(word, all[:])
		}
		return nil
	}
	f := ptxFunctions[name]
	if f == nil {
		return fmt.Errorf("cannot be executed")
	}
	var args [3]uint64
	for i, o := range operands[1:] {
		args[i] = th.value(o)
	}
	th.values[operands[0]] = f(args[0], args[1], args[2])
	return nil
}

// value returns the bits of a register or of a literal.
func (th *ptxThread) value(o string) uint64 {
	if hex, ok := strings.CutPrefix(o, "0d"); ok {
		v, _ := strconv.ParseUint(hex, 16, 64)
		return v
	}
	if v, err := strconv.ParseUint(o, 10, 31); err == nil {
		return v
	}
	return th.values[o]
}

// flag returns 1 for true.
func flag(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// onFloats returns an instruction on numbers of type f64, by a function on them.
func onFloats(f func(a, b, c float64) float64) func(a, b, c uint64) uint64 {
	return func(a, b, c uint64) uint64 {
		return math.Float64bits(f(math.Float64frombits(a), math.Float64frombits(b), math.Float64frombits(c)))
	}
}

// comparing returns an instruction that compares two numbers of type f64.
func comparing(f func(a, b float64) bool) func(a, b, c uint64) uint64 {
	return func(a, b, _ uint64) uint64 { return flag(f(math.Float64frombits(a), math.Float64frombits(b))) }
}

func same(a, _, _ uint64) uint64 { return a }

// ptxFunctions has the results of instructions for the bits of their operands.
var ptxFunctions = map[string]func(a, b, c uint64) uint64{
	"mov.u32": same, "mov.u64": same, "mov.b64": same, "mov.f64": same, "cvt.u64.u32": same,
	"cvt.f64.f32": func(a, _, _ uint64) uint64 {
		return math.Float64bits(float64(math.Float32frombits(uint32(a))))
	},
	"cvt.rn.f32.f64": func(a, _, _ uint64) uint64 {
		return uint64(math.Float32bits(float32(math.Float64frombits(a))))
	},
	"cvt.rni.f64.f64": onFloats(func(a, _, _ float64) float64 { return math.RoundToEven(a) }),
	"cvt.rni.s64.f64": func(a, _, _ uint64) uint64 {
		v := math.Float64frombits(a)
		if math.IsNaN(v) {
			return 1 << 63
		}
		return uint64(int64(math.RoundToEven(v)))
	},
	"cvt.rn.f64.s64": func(a, _, _ uint64) uint64 { return math.Float64bits(float64(int64(a))) },
	"add.u64":        func(a, b, _ uint64) uint64 { return a + b },
	"sub.u64":        func(a, b, _ uint64) uint64 { return a - b },
	"mul.lo.u64":     func(a, b, _ uint64) uint64 { return a * b },
	"mad.lo.u64":     func(a, b, c uint64) uint64 { return a*b + c },
	"mad.wide.u32":   func(a, b, c uint64) uint64 { return a*b + c },
	"div.u64":        func(a, b, _ uint64) uint64 { return a / b },
	"shl.b64":        func(a, b, _ uint64) uint64 { return a << b },
	"shr.u64":        func(a, b, _ uint64) uint64 { return a >> b },
	"shr.s64":        func(a, b, _ uint64) uint64 { return uint64(int64(a) >> b) },
	"neg.f64":        onFloats(func(a, _, _ float64) float64 { return -a }),
	"abs.f64":        onFloats(func(a, _, _ float64) float64 { return math.Abs(a) }),
	"sqrt.rn.f64":    onFloats(func(a, _, _ float64) float64 { return math.Sqrt(a) }),
	"add.rn.f64":     onFloats(func(a, b, _ float64) float64 { return a + b }),
	"mul.rn.f64":     onFloats(func(a, b, _ float64) float64 { return a * b }),
	"div.rn.f64":     onFloats(func(a, b, _ float64) float64 { return a / b }),
	"fma.rn.f64":     onFloats(math.FMA),
	"setp.eq.u64":    func(a, b, _ uint64) uint64 { return flag(a == b) },
	"setp.ne.u64":    func(a, b, _ uint64) uint64 { return flag(a != b) },
	"setp.ge.u64":    func(a, b, _ uint64) uint64 { return flag(a >= b) },
	"setp.eq.f64":    comparing(func(a, b float64) bool { return a == b }),
	"setp.gt.f64":    comparing(func(a, b float64) bool { return a > b }),
	"setp.lt.f64":    comparing(func(a, b float64) bool { return a < b }),
	"setp.le.f64":    comparing(func(a, b float64) bool { return a <= b }),
	"setp.gtu.f64":   comparing(func(a, b float64) bool { return !(a <= b) }),
	"setp.nan.f64":   comparing(func(a, b float64) bool { return math.IsNaN(a) || math.IsNaN(b) }),
}

// ptxKernel returns the kernel with that name in kernels.ptx.
func ptxKernel(t *testing.T, name string) *ptxEntry {
	t.Helper()
	entries, err := parsePTX(string(kernelText))
	require.NoError(t, err)
	for _, e := range entries {
		if e.name == name {
			return e
		}
	}
	require.FailNow(t, "no kernel", name)
	return nil
}

// floatBytes returns the memory of numbers of that size, 4 or 8 bytes.
func floatBytes(size int, values ...float64) (out []byte) {
	for _, v := range values {
		if size == 4 {
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(v)))
		} else {
			out = binary.LittleEndian.AppendUint64(out, math.Float64bits(v))
		}
	}
	return out
}

// floatsOf is the reverse of floatBytes.
func floatsOf(size int, p []byte) (out []float64) {
	for ; len(p) > 0; p = p[size:] {
		if size == 4 {
			out = append(out, float64(math.Float32frombits(binary.LittleEndian.Uint32(p))))
		} else {
			out = append(out, math.Float64frombits(binary.LittleEndian.Uint64(p)))
		}
	}
	return out
}

// unitsApart returns how many numbers of that size lie from a to b, or 0 for two NaN.
func unitsApart(size int, a, b float64) uint64 {
	if math.IsNaN(a) || math.IsNaN(b) {
		return flag(math.IsNaN(a) != math.IsNaN(b)) << 62
	}
	order := func(v float64) int64 {
		n, sign := int64(math.Float64bits(v)), uint64(1)<<63
		if size == 4 {
			n, sign = int64(int32(math.Float32bits(float32(v)))), 1<<31
		}
		if n < 0 {
			n = -int64(uint64(n) & (sign - 1)) // minus zero is 0
		}
		return n
	}
	high, low := order(a), order(b)
	if high < low {
		high, low = low, high
	}
	diff, _ := bits.Sub64(uint64(high), uint64(low), 0)
	return diff
}
