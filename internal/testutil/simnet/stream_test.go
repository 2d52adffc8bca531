package simnet_test

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/simnet"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// streams returns the two ends of a new link of n as byte streams, which are closed at the end of
// the test.
func streams(t *testing.T, n *simnet.Network) (dialled, accepted transport.Stream) {
	t.Helper()
	d, a := connect(t, n)
	dialled, err := d.(transport.Multiplexer).Stream()
	require.NoError(t, err)
	accepted, err = a.(transport.Multiplexer).Stream()
	require.NoError(t, err)
	return dialled, accepted
}

func TestWritesCountAsFrames(t *testing.T) {
	n := over()
	d, a := connect(t, n)
	require.NoError(t, d.WriteFrames(text("frame")))
	got, err := readFrame(a)
	require.NoError(t, err)
	require.Equal(t, "frame", got)
	s, err := d.(transport.Multiplexer).Stream()
	require.NoError(t, err)
	for _, p := range []string{"a", "", "bc"} {
		_, err = s.Write([]byte(p))
		require.NoError(t, err)
	}
	require.Equal(t, simnet.Counts{Frames: 3, Bytes: 8}, n.Links()[0].Sent(simnet.Dialled))
}

// A stream can be cut after each Write, within a Write and after each byte: exactly the bytes
// before the cut arrive, and then both ends get a reset.
func TestCutWithinAStream(t *testing.T) {
	const all = "abcdef"
	for name, tc := range map[string]struct {
		points int
		at     func(n int) simnet.Point
		arrive func(n int) int
	}{
		"between writes": {4, func(n int) simnet.Point { return simnet.AfterFrames(0, simnet.Dialled, n) }, func(n int) int { return 2 * n }},
		"within a write": {3, func(n int) simnet.Point { return simnet.WithinFrame(0, simnet.Dialled, 1, int64(n)) }, func(n int) int { return 2 + n }},
		"after bytes":    {7, func(n int) simnet.Point { return simnet.AfterBytes(0, simnet.Dialled, int64(n)) }, func(n int) int { return n }},
	} {
		for n := range tc.points {
			w, r := streams(t, over(simnet.CutAt(tc.at(n))))
			written := 0
			var werr error
			for i := 0; i < len(all) && werr == nil; i += 2 {
				var k int
				k, werr = w.Write([]byte(all[i : i+2]))
				written += k
			}
			want := tc.arrive(n)
			require.Equal(t, want, written, name)
			if want < len(all) {
				wantReset(t, 0, werr)
			}
			got, err := io.ReadAll(r)
			require.Equal(t, all[:want], string(got), name)
			wantReset(t, 0, err)
			_, err = w.Read(make([]byte, 1))
			wantReset(t, 0, err)
			_, err = r.Write([]byte("x"))
			wantReset(t, 0, err)
		}
	}
}

func TestStreamsAreSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := streams(t, over(simnet.Delay(time.Second), simnet.Rate(1000)))
		began := time.Now()
		for range 2 {
			_, err := w.Write(make([]byte, 500))
			require.NoError(t, err)
		}
		require.NoError(t, w.CloseWrite())
		for _, at := range []time.Duration{1500, 2000} {
			n, err := r.Read(make([]byte, 1000))
			require.NoError(t, err)
			require.Equal(t, 500, n)
			require.Equal(t, at*time.Millisecond, time.Since(began))
		}
		_, err := r.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
	})
}

func TestHalfOpenStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := over(simnet.HalfOpenAt(simnet.WithinFrame(0, simnet.Dialled, 1, 2)))
		w, r := streams(t, n)
		for _, p := range []string{"one", "two", "three"} {
			_, err := w.Write([]byte(p))
			require.NoError(t, err)
		}
		require.NoError(t, w.CloseWrite())
		got := make([]byte, 5)
		_, err := io.ReadFull(r, got)
		require.NoError(t, err)
		require.Equal(t, "onetw", string(got))

		require.NoError(t, r.SetReadDeadline(time.Now().Add(time.Hour)))
		_, err = r.Read(got)
		require.ErrorContains(t, err, "timeout")
		require.NoError(t, r.SetReadDeadline(time.Time{}))
		n.Links()[0].Heal()
		tail, err := io.ReadAll(r)
		require.NoError(t, err)
		require.Equal(t, "othree", string(tail))
	})
}

// runSession makes a session over a new link of n, and sends a request and its reply on each of two
// streams. It returns the error with which each end stopped, or nil.
func runSession(t *testing.T, n *simnet.Network) (clientErr, serverErr error) {
	d, a := connect(t, n)
	client, err := d.(transport.Multiplexer).Multiplex(transport.SessionConfig{MaxStreams: 2, Client: true})
	require.NoError(t, err)
	server, err := a.(transport.Multiplexer).Multiplex(transport.SessionConfig{MaxStreams: 2})
	require.NoError(t, err)
	defer client.Close()
	defer server.Close()
	acceptedErr := make(chan error, 1)
	go func() { acceptedErr <- runServer(t, server) }()
	clientErr = runClient(client)
	return clientErr, <-acceptedErr
}

func runClient(s transport.Session) error {
	for range 2 {
		st, err := s.Open()
		if err != nil {
			return err
		}
		if _, err = st.Write([]byte("question")); err != nil {
			return err
		}
		if _, err = io.ReadFull(st, make([]byte, len("answer"))); err != nil {
			return err
		}
	}
	return s.Close()
}

func runServer(t *testing.T, s transport.Session) error {
	for {
		st, err := s.Accept(t.Context())
		if err != nil {
			return err
		}
		if _, err = io.ReadFull(st, make([]byte, len("question"))); err != nil {
			return err
		}
		if _, err = st.Write([]byte("answer")); err != nil {
			return err
		}
	}
}

// If the link of a session is cut after any byte that one of its ends sends, both ends get a reset.
func TestCutAtEveryMessageOfASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		whole := over()
		clientErr, serverErr := runSession(t, whole)
		require.NoError(t, clientErr)
		require.ErrorIs(t, serverErr, io.EOF)
		const closeFrame = 12 // bytes, from the end that closes first
		for from, last := range map[simnet.End]int{simnet.Dialled: closeFrame, simnet.Accepted: 0} {
			sent := whole.Links()[0].Sent(from)
			require.Equal(t, 4+last/closeFrame, sent.Frames, "one to open or accept and one with data, for each of two streams")
			for b := range sent.Bytes - int64(last) {
				clientErr, serverErr := runSession(t, over(simnet.CutAt(simnet.AfterBytes(0, from, b))))
				wantReset(t, 0, clientErr)
				wantReset(t, 0, serverErr)
			}
		}
	})
}
