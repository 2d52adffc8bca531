package codec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

var errMine = errors.New("mine: with \"quotes\",\nlines and ümlauts")

type codeError struct {
	Code int
	Err  error
}

func (e *codeError) Error() string { return fmt.Sprintf("code %d: %v", e.Code, e.Err) }
func (e *codeError) Unwrap() error { return e.Err }

type strangeError struct{ parts []string }

func (e strangeError) Error() string { return "strange" }

func TestErrors(t *testing.T) {
	r := NewRegistry()
	require.NoError(t, r.RegisterError("mine", errMine))
	require.NoError(t, r.Register("codeError", codeError{}))
	var code *codeError
	for _, c := range []struct {
		err error
		is  error
	}{
		{nil, nil},
		{errMine, errMine},
		{io.EOF, io.EOF},
		{context.DeadlineExceeded, context.DeadlineExceeded},
		{fmt.Errorf("while reading: %w", errMine), errMine},
		{errors.Join(io.EOF, fmt.Errorf("x: %w", errMine)), errMine},
		{&codeError{7, fmt.Errorf("y: %w", io.EOF)}, io.EOF},
		{&fs.PathError{Op: "open", Path: "/x", Err: syscall.ENOENT}, fs.ErrNotExist},
		{os.NewSyscallError("read", syscall.EPERM), fs.ErrPermission},
	} {
		got := roundTrip(t, r, c.err)
		require.ErrorIs(t, got, c.is)
		if c.err != nil {
			require.Equal(t, c.err.Error(), got.Error())
		}
		require.Equal(t, errors.As(c.err, &code), errors.As(got, &code))
	}
	got := roundTrip(t, r, error(&codeError{7, io.EOF}))
	require.Equal(t, &codeError{7, io.EOF}, got)
	require.Equal(t, &codeError{1, nil}, roundTrip(t, r, &codeError{1, nil}))
}

func TestUnknownErrors(t *testing.T) {
	r := NewRegistry()
	got := roundTrip(t, r, error(strangeError{[]string{"not comparable"}}))
	var remote *RemoteError
	require.ErrorAs(t, got, &remote)
	require.Equal(t, "codec.strangeError", remote.Type)
	require.Equal(t, "strange", remote.Text)
	require.Empty(t, remote.Unwrap())

	again := roundTrip(t, r, got)
	require.Equal(t, got, again, "encoded again it stays the same")

	inAny := roundTrip(t, r, any(fmt.Errorf("a: %w", io.EOF)))
	require.ErrorIs(t, inAny.(error), io.EOF)
	require.EqualError(t, inAny.(error), "a: EOF")
}

// TestErrorsUnregisteredAtTheReceiver checks that errors whose value or type only the sender has
// registered are decoded to a *RemoteError with their registered name and text, and the values
// after them are decoded correctly.
func TestErrorsUnregisteredAtTheReceiver(t *testing.T) {
	sender := NewRegistry()
	require.NoError(t, sender.RegisterError("mine", errMine))
	require.NoError(t, sender.Register("codeError", codeError{}))
	var remote *RemoteError

	data, _ := encode(t, sender, &errMine)
	var got error
	require.NoError(t, decode(t, NewRegistry(), &got, data, nil))
	require.ErrorAs(t, got, &remote)
	require.Equal(t, "mine", remote.Type)
	require.Equal(t, errMine.Error(), remote.Text)

	type result struct {
		Err  error
		Next int
	}
	data, _ = encode(t, sender, &result{&codeError{7, errMine}, 5})
	var res result
	require.NoError(t, decode(t, NewRegistry(), &res, data, nil))
	require.Equal(t, 5, res.Next)
	require.ErrorAs(t, res.Err, &remote)
	require.Equal(t, "codeError", remote.Type)
	require.Equal(t, (&codeError{7, errMine}).Error(), remote.Text)
}

type endless struct{}

func (endless) Error() string { return "endless" }
func (endless) Unwrap() error { return endless{} }

func TestErrorChains(t *testing.T) {
	require.ErrorIs(t, encodeError(t, NewRegistry(), ptr(error(endless{}))), ErrLimit)
}

func TestRegisterError(t *testing.T) {
	r := NewRegistry()
	require.NoError(t, r.RegisterError("mine", errMine))
	require.NoError(t, r.RegisterError("mine", errMine), "registered again")
	require.ErrorIs(t, r.RegisterError("mine", ErrCycle), ErrRegistered)
	require.ErrorIs(t, r.RegisterError("other", errMine), ErrRegistered)
	require.ErrorIs(t, r.RegisterError("", errMine), ErrUnsupported)
	require.ErrorIs(t, r.RegisterError("nil", nil), ErrUnsupported)
	require.ErrorIs(t, r.RegisterError("strange", strangeError{[]string{}}), ErrUnsupported)
}
