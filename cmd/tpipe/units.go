package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// byteSize is a number of bytes on the command line, as in 64KiB.
type byteSize int

// units are the suffixes of a byteSize, the largest first.
var units = []struct {
	name string
	size int
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

var errSize = errors.New("want a number of bytes such as 4096, 64KiB, 16MiB or 1GiB")

// Set implements flag.Value.
func (b *byteSize) Set(text string) error {
	digits, unit := text, 1
	for _, u := range units {
		if rest, ok := strings.CutSuffix(text, u.name); ok {
			digits, unit = rest, u.size
			break
		}
	}
	n, err := strconv.ParseUint(strings.TrimSpace(digits), 10, 63)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return errSize
	}
	if err != nil || n > math.MaxInt/uint64(unit) {
		return fmt.Errorf("more bytes than a machine can have; %w", errSize)
	}
	*b = byteSize(n) * byteSize(unit)
	return nil
}

// String prints a size exactly, in the largest unit that divides it, or with
// one decimal if it is no round number.
func (b byteSize) String() string {
	for _, u := range units {
		switch n := int(b); {
		case n >= u.size && n%u.size == 0:
			return fmt.Sprintf("%d %s", n/u.size, u.name)
		case n >= u.size:
			return fmt.Sprintf("%.1f %s", float64(n)/float64(u.size), u.name)
		}
	}
	return "0 B"
}

// duration prints d with three digits.
func duration(d time.Duration) string {
	switch us := float64(d) / 1e3; {
	case us < 1e3:
		return fmt.Sprintf("%.3g us", us)
	case us < 1e6:
		return fmt.Sprintf("%.3g ms", us/1e3)
	default:
		return fmt.Sprintf("%.3g s", us/1e6)
	}
}

// gigabytesPerSecond is a rate in 10^9 bytes, 0 if no time passed.
func gigabytesPerSecond(bytes int, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(bytes) / float64(d.Nanoseconds())
}

// rate prints bytes per second, in powers of ten as networks are measured.
func rate(bytes int, d time.Duration) string {
	switch gb := gigabytesPerSecond(bytes, d); {
	case gb == 0:
		return "-"
	case gb >= 1:
		return fmt.Sprintf("%.3g GB/s", gb)
	case gb >= 1e-3:
		return fmt.Sprintf("%.3g MB/s", gb*1e3)
	default:
		return fmt.Sprintf("%.3g kB/s", gb*1e6)
	}
}

// plural prints a number and a noun.
func plural(n int, noun string) string {
	switch stem, y := strings.CutSuffix(noun, "y"); {
	case n == 1:
		return "1 " + noun
	case y:
		return strconv.Itoa(n) + " " + stem + "ies"
	default:
		return strconv.Itoa(n) + " " + noun + "s"
	}
}
