package codec

import (
	"bytes"
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// appendEmptyFields appends to s, an encoded struct schema, n fields whose types take no bytes, and
// returns the extended slice.
func appendEmptyFields(s []byte, n int) []byte {
	for range n {
		s = append(s, 0, byte(kindArray), 0, byte(kindBool))
	}
	return s
}

// structOf returns the beginning of the encoded schema of an unnamed struct: all but its fields,
// whose number it contains.
func structOf(fields int) []byte {
	return append([]byte{byte(kindStruct), 0}, uvarint(uint64(fields))...)
}

// TestSkippingIsLinearInBytes checks that skipping a value takes at most one step per byte, however
// many parts without bytes its type has and however deep the others are nested. The test would
// exceed its time limit otherwise.
func TestSkippingIsLinearInBytes(t *testing.T) {
	const each, deep = 800, 20 // which are 64 KiB of schema
	wide := []byte{byte(kindBool)}
	for range deep {
		wide = append(appendEmptyFields(structOf(each+1), each), append([]byte{0}, wide...)...)
	}
	narrow := []byte{byte(kindBool)}
	for range maxHeight - 3 {
		narrow = append(append(structOf(1), 0), narrow...)
	}
	single := []byte{byte(kindBool)}
	for range maxHeight - 3 {
		single = append([]byte{byte(kindArray), 1}, single...)
	}
	n := 4 << 20
	for name, elem := range map[string][]byte{"wide": wide, "deep structs": narrow, "deep arrays": single} {
		t.Run(name, func(t *testing.T) {
			s := append(append(structOf(1), 1, 'X', byte(kindSlice)), elem...)
			require.LessOrEqual(t, len(s), maxSchema)
			value := append(uvarint(uint64(n)+1), make([]byte, n)...)
			var got part1
			require.NoError(t, decode(t, NewRegistry(), &got, forged(t, &got, s, false, value...), nil))
			require.Zero(t, got)
		})
	}
}

// TestMatchingIgnoresEmptyFields checks that if the sender's struct has fields that the receiver
// does not know and that take no bytes, decoding has no step for them.
func TestMatchingIgnoresEmptyFields(t *testing.T) {
	s := append(appendEmptyFields(structOf(maxFields), maxFields-2), 1, 'Y', byte(kindInt), 1, 'A', byte(kindInt))
	ptr := new([]part1)
	d := NewDecoder(NewRegistry(), Limits{})
	require.NoError(t, d.Reset(forged(t, ptr, append([]byte{byte(kindSlice)}, s...), false, 3, 2, 4, 6, 8)))
	require.NoError(t, d.Decode(ptr))
	require.NoError(t, d.Finish())
	require.Equal(t, []part1{{A: 2}, {A: 4}}, *ptr)
	require.Len(t, d.matches, 1)
	for _, m := range d.matches {
		require.Len(t, m.steps, 2, "Y and A")
	}
}

// structWith returns a struct type with the given number of bool fields.
func structWith(fields int) reflect.Type {
	all := make([]reflect.StructField, fields)
	for i := range all {
		all[i] = reflect.StructField{Name: fmt.Sprint("F", i), Type: reflect.TypeFor[bool]()}
	}
	return reflect.StructOf(all)
}

// TestManyFields checks that a struct of 1024 fields is sent; one of 1025 fields is rejected by the
// Encoder with ErrUnsupported and by the Decoder with ErrLimit.
func TestManyFields(t *testing.T) {
	value := reflect.New(structWith(maxFields))
	value.Elem().Field(maxFields - 1).SetBool(true)
	var got struct{ F1023 bool }
	require.NoError(t, sent(t, value.Interface(), &got))
	require.True(t, got.F1023)

	err := encodeError(t, NewRegistry(), reflect.New(structWith(maxFields+1)).Interface())
	require.ErrorIs(t, err, ErrUnsupported)
	require.ErrorContains(t, err, "1025 encoded fields, at most 1024 are allowed")

	s := append(structOf(maxFields+1), bytes.Repeat([]byte{1, 'F', byte(kindInt)}, maxFields+1)...)
	err = decode(t, NewRegistry(), new(part1), forged(t, new(part1), s, false, make([]byte, maxFields+1)...), nil)
	require.ErrorIs(t, err, ErrLimit)
	require.ErrorContains(t, err, "1025 fields, at most 1024")
}
