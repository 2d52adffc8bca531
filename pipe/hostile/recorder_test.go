package hostile_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// recorder is a log that tests can wait for: what a listener has to say about
// its visitors shows up nowhere else.
type recorder struct {
	mu      sync.Mutex
	records []record
}

type record struct {
	peer string
	err  error
}

func (r *recorder) logger() *slog.Logger { return slog.New(r) }

// Enabled is part of slog.Handler.
func (r *recorder) Enabled(context.Context, slog.Level) bool { return true }

// Handle is part of slog.Handler.
func (r *recorder) Handle(_ context.Context, line slog.Record) error {
	var rec record
	line.Attrs(func(a slog.Attr) bool {
		switch v := a.Value.Any().(type) {
		case error:
			rec.err = v
		case string:
			rec.peer = v
		}
		return true
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records = append(r.records, rec)
	return nil
}

// WithAttrs is part of slog.Handler; nobody uses it.
func (r *recorder) WithAttrs([]slog.Attr) slog.Handler { return r }

// WithGroup is part of slog.Handler; nobody uses it.
func (r *recorder) WithGroup(string) slog.Handler { return r }

// find returns the records that match.
func (r *recorder) find(match func(record) bool) []record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.records), func(rec record) bool { return !match(rec) })
}

// requireRefused waits for the line about a failed handshake with that peer
// and checks its reasons. It returns that error.
func (r *recorder) requireRefused(t testing.TB, peer string, reasons ...error) error {
	t.Helper()
	var found []record
	await(t, func() bool {
		found = r.find(func(rec record) bool { return rec.peer == peer })
		return len(found) > 0
	}, "a line about "+peer)
	last := found[len(found)-1].err
	for _, reason := range reasons {
		require.ErrorIs(t, last, reason)
	}
	return last
}

// count is the number of lines so far that give that reason.
func (r *recorder) count(reason error) int {
	return len(r.find(func(rec record) bool { return errors.Is(rec.err, reason) }))
}
