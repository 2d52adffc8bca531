package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestByteSize(t *testing.T) {
	for text, want := range map[string]byteSize{
		"0": 0, "17": 17, "17B": 17, "1KiB": 1024, "64 KiB": 65536, "3MiB": 3 << 20, "2GiB": 2 << 30,
	} {
		var got byteSize
		require.NoError(t, got.Set(text), text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "KiB", "-1", "1kB", "1.5MiB", "1e3", "99999999999999999999", "9999999999GiB", "0x10", "1KiBKiB"} {
		var got byteSize
		require.ErrorIs(t, got.Set(text), errSize, text)
	}
	for size, want := range map[byteSize]string{
		0: "0 B", 1: "1 B", 1023: "1023 B", 1024: "1 KiB", 1500: "1.5 KiB", 1 << 20: "1 MiB", 3844000: "3.7 MiB", 5 << 30: "5 GiB",
	} {
		require.Equal(t, want, size.String())
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 us", 950: "0.95 us", 61234: "61.2 us", 1500 * time.Microsecond: "1.5 ms", 2345 * time.Millisecond: "2.35 s",
	} {
		require.Equal(t, want, duration(d))
	}
}

func TestRate(t *testing.T) {
	require.Equal(t, "2.5 GB/s", rate(5e9, 2*time.Second))
	require.Equal(t, "12.3 MB/s", rate(12.3e6, time.Second))
	require.Equal(t, "64 kB/s", rate(64, time.Millisecond))
	require.Equal(t, "-", rate(64, 0))
	require.Equal(t, "-", rate(0, time.Second))
}

func TestPlural(t *testing.T) {
	require.Equal(t, []string{"0 tensors", "1 tensor", "2 tensors", "1 copy", "3 copies"},
		[]string{plural(0, "tensor"), plural(1, "tensor"), plural(2, "tensor"), plural(1, "copy"), plural(3, "copy")})
}

func TestPercentile(t *testing.T) {
	times := make([]time.Duration, 200)
	for i := range times {
		times[i] = time.Duration(i + 1)
	}
	for percent, want := range map[int]time.Duration{0: 1, 50: 100, 90: 180, 99: 198, 100: 200} {
		require.Equal(t, want, percentile(times, percent), "p%d", percent)
	}
	require.Equal(t, time.Duration(7), percentile([]time.Duration{7}, 50))
	require.Equal(t, time.Duration(2), percentile([]time.Duration{1, 2, 3}, 50))
}
