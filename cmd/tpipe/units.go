package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// byteSize is a flag.Value for a number of bytes, such as 64KiB. The suffixes are B, KiB, MiB and GiB.
type byteSize int

// units are the suffixes of a byteSize, largest first.
var units = []struct {
	name string
	size int
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

var errSize = errors.New("want a number of bytes such as 4096, 64KiB, 16MiB or 1GiB")

// Set parses text, such as "4096" or "64KiB", and stores the number of bytes in b. It returns an
// error if text is not an integer from 0 on with an optional suffix B, KiB, MiB or GiB, or is too
// large; b is unchanged then.
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

// String returns the size in the largest of the units B, KiB, MiB and GiB that it reaches, such as
// "64 KiB". A size that is no multiple of that unit is rounded to one decimal.
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

// duration returns d, which is not negative, as text in us, ms or s, rounded to three significant
// digits, such as "12.5 ms".
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

// gigabytesPerSecond returns the rate of the given number of bytes in the time d, in 10^9 bytes per
// second. It returns 0 if d is 0 or negative.
func gigabytesPerSecond(bytes int, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(bytes) / float64(d.Nanoseconds())
}

// rate returns the rate of the given number of bytes in the time d as text, such as "1.5 GB/s",
// where a GB is 10^9 bytes. It returns "-" if bytes is 0, or if d is 0 or negative.
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

// plural returns n and noun as text, such as "1 copy" or "2 copies". It appends an s, or replaces a
// y at the end by ies, unless n is 1.
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
