package main

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSum(t *testing.T) {
	a := appendTensor(nil, []int{2, 2}, []float32{1, 2, 3, 4})
	require.Len(t, a, 1+2*8+16)
	got, err := sum(append(a, appendTensor(nil, []int{2, 2}, []float32{0.5, 0, -3, 1})...))
	require.NoError(t, err)
	require.Equal(t, appendTensor(nil, []int{2, 2}, []float32{1.5, 2, 0, 5}), got)

	scalar := appendTensor(nil, nil, []float32{1})
	got, err = sum(append(scalar, scalar...))
	require.NoError(t, err)
	require.Equal(t, appendTensor(nil, nil, []float32{2}), got)
}

// TestSumRejectsInvalidRequests tests that sum returns the right error for requests that are cut
// off, too long, have different shapes, or claim sizes that they do not have.
func TestSumRejectsInvalidRequests(t *testing.T) {
	a := appendTensor(nil, []int{2, 2}, []float32{1, 2, 3, 4})
	both := append(append([]byte(nil), a...), a...)
	for n := range both {
		_, err := sum(both[:n])
		require.ErrorIs(t, err, errShort, "%d bytes", n)
	}
	_, err := sum(append(both, 0))
	require.ErrorIs(t, err, errTrailing)
	_, err = sum(append(append([]byte(nil), a...), appendTensor(nil, []int{4}, []float32{1, 2, 3, 4})...))
	require.ErrorIs(t, err, errShapes)
	for _, shape := range [][]uint64{{1 << 62, 4}, {1 << 63, 2}, {1 << 32, 1 << 32}, {1<<64 - 1}} {
		huge := []byte{byte(len(shape))}
		for _, dim := range shape {
			huge = binary.LittleEndian.AppendUint64(huge, dim)
		}
		_, err := sum(append(huge, make([]byte, 64)...))
		require.ErrorIs(t, err, errShort)
	}
}
