package chart

import (
	"math"
	"slices"
)

// scale places values between 0 and 1.
type scale struct {
	place func(float64) float64
	ticks []float64
}

// sizeScale has a tick at each size that occurs. Size 0, which has no logarithm,
// stands two doublings before the smallest other one.
func sizeScale(sizes []float64) scale {
	sizes = slices.Compact(slices.Sorted(slices.Values(sizes)))
	doublings := func(size float64) float64 {
		if size > 0 {
			return math.Log2(size)
		}
		if last := len(sizes) - 1; last > 0 {
			return math.Log2(sizes[1]) - 2
		}
		return 0
	}
	if len(sizes) < 2 {
		return scale{func(float64) float64 { return 0.5 }, sizes}
	}
	first, last := doublings(sizes[0]), doublings(sizes[len(sizes)-1])
	return scale{func(size float64) float64 { return (doublings(size) - first) / (last - first) }, sizes}
}

// logScale has ticks at powers of ten, and at twice and five times those where
// there are few.
func logScale(values []float64) scale {
	low, high := slices.Min(values), slices.Max(values)
	wide := high/low > 500
	var ticks []float64
	for power := math.Floor(math.Log10(low)); power <= math.Ceil(math.Log10(high)); power++ {
		for _, m := range []float64{1, 2, 5} {
			if m == 1 || !wide {
				ticks = append(ticks, m*math.Pow(10, power))
			}
		}
	}
	for len(ticks) > 2 && ticks[1] <= low {
		ticks = ticks[1:]
	}
	for len(ticks) > 2 && ticks[len(ticks)-2] >= high {
		ticks = ticks[:len(ticks)-1]
	}
	first, last := math.Log(ticks[0]), math.Log(ticks[len(ticks)-1])
	return scale{func(v float64) float64 { return (math.Log(v) - first) / (last - first) }, ticks}
}

// linearScale begins at 0 and has about six round ticks.
func linearScale(values []float64) scale {
	high := slices.Max(values)
	if high <= 0 {
		high = 1
	}
	step := math.Pow(10, math.Floor(math.Log10(high/6)))
	for _, m := range []float64{1, 2, 5, 10} {
		if high/(m*step) <= 6 {
			step *= m
			break
		}
	}
	n := math.Ceil(high / step)
	var ticks []float64
	for i := range int(n) + 1 {
		ticks = append(ticks, float64(i)*step)
	}
	return scale{func(v float64) float64 { return v / (n * step) }, ticks}
}
