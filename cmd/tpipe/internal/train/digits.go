package train

import (
	"bufio"
	"bytes"
	"compress/gzip"
	_ "embed"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// The shape of the data.
const (
	Pixels  = 64   // of an image, 8x8
	Classes = 10   // the digits
	Rows    = 1797 // of the data set
	TrainN  = 1437 // the first rows are for training, the others for tests

	maxPixel  = 16
	maxDigits = 1 << 20 // rows of a file
)

// digitsFile is the data set of handwritten digits; data/README.md has its origin and license.
//
//go:embed data/digits.csv.gz
var digitsFile []byte

// Digits is images of digits. X, of shape [n, Pixels] and type F32, has the pixels from 0 to 1, and Y,
// of shape [n] and type I64, the digits.
type Digits struct{ X, Y *tensor.Tensor }

// DataError reports a row that is not an image of a digit. Row counts from 1; it is 0 if the error is
// about the whole file.
type DataError struct {
	Row    int
	Reason string
}

func (e *DataError) Error() string {
	if e.Row == 0 {
		return "digits: " + e.Reason
	}
	return fmt.Sprintf("digits: row %d: %s", e.Row, e.Reason)
}

// Load returns the rows of the embedded data set for training, and those for tests.
func Load() (training, test Digits, err error) {
	unzipped, err := gzip.NewReader(bytes.NewReader(digitsFile))
	if err != nil {
		return training, test, err
	}
	all, err := Read(unzipped)
	if err != nil {
		return training, test, err
	}
	if n := all.Y.Len(); n != Rows {
		return training, test, &DataError{Reason: fmt.Sprintf("%d rows, want %d", n, Rows)}
	}
	if training, err = all.rows(0, TrainN); err != nil {
		return training, test, err
	}
	test, err = all.rows(TrainN, Rows-TrainN)
	return training, test, err
}

// Read reads images from r: one in each line, Pixels integers from 0 to 16 and the digit, separated by
// commas. The error is a *DataError, or that of r.
func Read(r io.Reader) (Digits, error) {
	var pixels []float32
	var digits []int64
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		row := len(digits) + 1
		if row > maxDigits {
			return Digits{}, &DataError{Reason: fmt.Sprintf("more than %d rows", maxDigits)}
		}
		fields := strings.Split(lines.Text(), ",")
		if len(fields) != Pixels+1 {
			return Digits{}, &DataError{row, fmt.Sprintf("%d values, want %d", len(fields), Pixels+1)}
		}
		for i, field := range fields {
			most := maxPixel
			if i == Pixels {
				most = Classes - 1
			}
			n, err := strconv.Atoi(field)
			if err != nil || n < 0 || n > most {
				return Digits{}, &DataError{row, fmt.Sprintf("value %d is %q, want 0 to %d", i+1, field, most)}
			}
			if i == Pixels {
				digits = append(digits, int64(n))
			} else {
				pixels = append(pixels, float32(n)/maxPixel)
			}
		}
	}
	if err := lines.Err(); err != nil {
		return Digits{}, err
	}
	x, err := tensor.FromSlice(pixels, len(digits), Pixels)
	if err != nil {
		return Digits{}, err
	}
	y, err := tensor.FromSlice(digits, len(digits))
	return Digits{x, y}, err
}

// rows returns n rows from the row with index first on, which share the memory of d.
func (d Digits) rows(first, n int) (Digits, error) {
	x, err := d.X.Narrow(0, first, n)
	if err != nil {
		return Digits{}, err
	}
	y, err := d.Y.Narrow(0, first, n)
	return Digits{x, y}, err
}

// batches returns d divided into parts of size rows, in order. The last one may be smaller.
func (d Digits) batches(size int) (all []Digits, err error) {
	for first, n := 0, d.Y.Len(); first < n; first += size {
		part, err := d.rows(first, min(size, n-first))
		if err != nil {
			return nil, err
		}
		all = append(all, part)
	}
	return all, nil
}
