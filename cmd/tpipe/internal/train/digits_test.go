package train

import (
	"bytes"
	"compress/gzip"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// TestLoad checks the size of both parts of the data, and values of the first and of the last row.
func TestLoad(t *testing.T) {
	training, test, err := Load()
	require.NoError(t, err)
	require.Equal(t, []int{TrainN, Pixels}, training.X.Shape())
	require.Equal(t, []int{Rows - TrainN, Pixels}, test.X.Shape())
	for i, want := range []float32{0, 0, 5. / 16, 13. / 16, 9. / 16, 1. / 16, 0} {
		got, err := tensor.At[float32](training.X, 0, i)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	unzipped, err := gzip.NewReader(bytes.NewReader(digitsFile))
	require.NoError(t, err)
	text, err := io.ReadAll(unzipped)
	require.NoError(t, err)
	last, err := tensor.At[int64](test.Y, Rows-TrainN-1)
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(string(text), ","+string(rune('0'+last))+"\n"))
}

// TestRead checks that Read accepts images, and that its errors name the row and the value.
func TestRead(t *testing.T) {
	row := strings.Repeat("16,", Pixels) + "9"
	d, err := Read(strings.NewReader(row + "\n" + row + "\n"))
	require.NoError(t, err)
	require.Equal(t, []int{2, Pixels}, d.X.Shape())
	require.Equal(t, []int{2}, d.Y.Shape())
	empty, err := Read(strings.NewReader(""))
	require.NoError(t, err)
	require.Equal(t, []int{0, Pixels}, empty.X.Shape())
	for text, want := range map[string]string{
		row + "\n" + row + ",1": "digits: row 2: 66 values, want 65",
		"\n" + row:              "digits: row 1: 1 values, want 65",
		"17" + row[2:]:          `digits: row 1: value 1 is "17", want 0 to 16`,
		"-1" + row[2:]:          `digits: row 1: value 1 is "-1", want 0 to 16`,
		"x" + row[2:]:           `digits: row 1: value 1 is "x", want 0 to 16`,
		row + "0":               `digits: row 1: value 65 is "90", want 0 to 9`,
	} {
		_, err := Read(strings.NewReader(text))
		require.EqualError(t, err, want)
		bad := (*DataError)(nil)
		require.ErrorAs(t, err, &bad)
	}
	_, err = Read(strings.NewReader(strings.Repeat("1", 1<<20)))
	require.Error(t, err)
}

// TestBatches checks the number of rows in the parts, and their order.
func TestBatches(t *testing.T) {
	training, _, err := Load()
	require.NoError(t, err)
	for size, want := range map[int][]int{1000: {1000, 437}, TrainN: {TrainN}, 2000: {TrainN}} {
		all, err := training.batches(size)
		require.NoError(t, err)
		var rows []int
		for _, d := range all {
			rows = append(rows, d.Y.Len())
		}
		require.Equal(t, want, rows)
		last, err := tensor.At[int64](all[len(all)-1].Y, want[len(want)-1]-1)
		require.NoError(t, err)
		expected, err := tensor.At[int64](training.Y, TrainN-1)
		require.NoError(t, err)
		require.Equal(t, expected, last)
	}
}
