// Package errtext makes errors whose texts have one line and repeat nothing.
package errtext

import (
	"errors"
	"net"
	"os"
	"slices"
	"strings"
)

// textError is an error with a text of its own.
type textError struct {
	text   string
	causes []error
}

func (e *textError) Error() string { return e.text }

// Unwrap returns the causes.
func (e *textError) Unwrap() []error { return e.causes }

// New returns an error with the given text that matches each of causes. It keeps causes.
func New(text string, causes ...error) error { return &textError{text, causes} }

// Join returns an error that matches each of errs, except those that are nil. Its text consists of
// their texts, separated by "; ", without repetitions. Join returns nil if all of errs are nil, and
// the error itself if only one is not.
func Join(errs ...error) error {
	errs = slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil })
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	var texts []string
	for _, err := range errs {
		if text := err.Error(); !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	return &textError{strings.Join(texts, "; "), errs}
}

// OfConnection returns the text of err, an error of a connection whose ends are known. It leaves out
// the operation, the network and the addresses that an error of package net within err has.
func OfConnection(err error) string {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok {
		return err.Error()
	}
	return strings.Replace(err.Error(), op.Error(), causeOf(op), 1)
}

// causeOf returns the text of the cause of op, without the name of the system call.
func causeOf(op *net.OpError) string {
	if system, ok := op.Err.(*os.SyscallError); ok {
		return system.Err.Error()
	}
	return op.Err.Error()
}

// OfNetwork returns the text of err, an error of package net about the address addr, without the
// operation, the network and that address: "connection refused" for a dial to addr. Another address
// in err stays in the text.
func OfNetwork(err error, addr string) string {
	op, ok := err.(*net.OpError)
	if !ok {
		return err.Error()
	}
	text := causeOf(op)
	if op.Addr != nil && strings.TrimPrefix(op.Addr.String(), "@") != addr {
		return op.Addr.String() + ": " + text
	}
	return text
}
