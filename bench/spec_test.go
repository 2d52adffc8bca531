package bench

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSpecCheck(t *testing.T) {
	require.NoError(t, small(8, true).Check())
	for want, spoil := range map[string]func(*Spec){
		"nothing to measure":        func(s *Spec) { s.RoundTrips, s.ColdTrips, s.OneWay = 0, 0, 0 },
		"-1 round trips":            func(s *Spec) { s.RoundTrips = -1 },
		"10000001 messages one way": func(s *Spec) { s.OneWay = maxMessages + 1 },
		"depth -1":                  func(s *Spec) { s.Depth = -1 },
		"depth 1025":                func(s *Spec) { s.Depth = 1025 },
		"size -1":                   func(s *Spec) { s.Size = -1 },
		"size 2147483648: with a depth of 4 want 0 to 1073741824 bytes": func(s *Spec) { s.Size = 2 << 30 },
		"-1 lanes: want 1 to 128":                   func(s *Spec) { s.Lanes = -1 },
		"129 lanes: want 1 to 128":                  func(s *Spec) { s.Lanes = 129 },
		`buffers "stack": want default, huge, pool`: func(s *Spec) { s.Buffers = "stack" },
		"idle -1s": func(s *Spec) { s.Idle = -time.Second },
	} {
		s := small(8, true)
		spoil(&s)
		require.ErrorIs(t, s.Check(), ErrSpec)
		require.ErrorContains(t, s.Check(), want)
	}
}

func TestSpecRejectsUnknownNames(t *testing.T) {
	for _, s := range []Spec{{Transports: []string{"pigeon"}}, {Channels: []string{"pigeon"}}} {
		_, err := s.options("test", nil)
		require.ErrorIs(t, err, ErrSpec)
		require.ErrorContains(t, err, `"pigeon"`)
	}
	opts, err := Spec{}.options("test", nil)
	require.NoError(t, err)
	require.NotEmpty(t, opts.Transports)
	require.NotEmpty(t, opts.Channels)
}

func TestSpecOfLibtensorpipe(t *testing.T) {
	for _, spoil := range []func(*Spec){
		func(s *Spec) { s.Transports = nil },
		func(s *Spec) { s.Channels = []string{"basic", "xth"} },
		func(s *Spec) { s.OneProcess = true },
		func(s *Spec) { s.Depth = -1 },
	} {
		s := small(8, true)
		spoil(&s)
		_, err := Libtensorpipe{}.Measure(t.Context(), s)
		require.ErrorIs(t, err, ErrSpec)
	}
}

// TestBatchCommandLimits tests that parseBatchCommand accepts the batches of valid Specs, also of
// the largest ones.
func TestBatchCommandLimits(t *testing.T) {
	for _, depth := range []int{1, 8, batchMessages} {
		for _, size := range []int{0, 1, 1 << 20, maxBatchBytes / (2 * depth)} {
			s := Spec{Size: size, Depth: depth, OneWay: 1}
			require.NoError(t, s.Check())
			want := batchCommand{kindSink, s.batch(), 7, size, depth, true}
			got, err := parseBatchCommand(want.String())
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	}
}

// TestBatchIsNoLargerThanNeeded tests the number of messages of a batch for some sizes, and that it
// does not exceed the number of messages of the Spec.
func TestBatchIsNoLargerThanNeeded(t *testing.T) {
	require.Equal(t, 256, Spec{Size: 1 << 20, Depth: 8}.batch())
	require.Equal(t, 16, Spec{Size: 64 << 20, Depth: 8}.batch())
	require.Equal(t, 7, Spec{Size: 64 << 20, Depth: 8, RoundTrips: 3, ColdTrips: 1, OneWay: 7}.batch())
	require.Equal(t, batchMessages, Spec{Depth: 8, RoundTrips: maxMessages}.batch())
}

func TestInvalidBatchCommands(t *testing.T) {
	for _, text := range []string{
		"", "echo", "dance 1 0 8 1 0", "echo 0 0 8 1 0", "echo -1 0 8 1 0", "echo 1 0 -8 1 0", "echo 1 0 8 0 0",
		"echo 1 0 8 1", "echo 9999999 0 0 1 0", "echo 1024 0 99999999999 1 0", "sink 1 0 8 1000000 0", "echo 99999999999999999999 0 8 1 0",
	} {
		_, err := parseBatchCommand(text)
		require.ErrorIs(t, err, ErrProtocol, text)
	}
}

// fakeSubject returns predefined figures.
type fakeSubject struct {
	name    string
	log     *[]string
	figures []float64
	err     error
}

func (r *fakeSubject) Name() string { return r.name }

func (r *fakeSubject) Measure(context.Context, Spec) (*Result, error) {
	*r.log = append(*r.log, r.name)
	if len(r.figures) == 0 {
		return nil, r.err
	}
	f := r.figures[0]
	r.figures = r.figures[1:]
	return &Result{GBps: f, RTT: &Percentiles{P50: f}}, nil
}

func TestCompareAlternates(t *testing.T) {
	var log []string
	a := &fakeSubject{name: "a", log: &log, figures: []float64{1, 2, 30}}
	b := &fakeSubject{name: "b", log: &log, figures: []float64{2, 2, 10}}
	c, err := Compare(t.Context(), a, b, Spec{}, 3)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b", "b", "a", "a", "b"}, log)
	require.Equal(t, 1.0, c.Ratio(Bandwidth), "the median of 1/2, 2/2 and 30/10")
	require.Equal(t, 1.0, c.Ratio(RTT))
	require.Zero(t, c.Ratio(ColdRTT), "nothing was measured")
	goValue, peerValue := c.Medians(Bandwidth)
	require.Equal(t, []float64{2, 2}, []float64{goValue, peerValue})
}

// TestCompareFails tests that Compare returns no result and makes no further measurement after a
// subject has failed, and that the error names the pair and the subject.
func TestCompareFails(t *testing.T) {
	var log []string
	broken := errors.New("broken")
	a := &fakeSubject{name: "a", log: &log, figures: []float64{1, 2, 3}}
	b := &fakeSubject{name: "b", log: &log, figures: []float64{1}, err: broken}
	c, err := Compare(t.Context(), a, b, Spec{}, 3)
	require.Nil(t, c)
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "pair 2 of 3: b: ")
	require.Equal(t, []string{"a", "b", "b"}, log, "no needless measurements")
}

func TestMedian(t *testing.T) {
	require.Zero(t, median(nil))
	require.Equal(t, 3.0, median([]float64{5, 3, 1}))
	require.Equal(t, 2.5, median([]float64{4, 1, 2, 3}))
}

func TestPercentiles(t *testing.T) {
	require.Nil(t, percentiles(nil))
	samples := make([]time.Duration, 200)
	for i := range samples {
		samples[len(samples)-1-i] = time.Duration(i+1) * time.Microsecond
	}
	require.Equal(t, &Percentiles{P50: 100, P90: 180, P99: 198}, percentiles(samples))
	require.Equal(t, &Percentiles{P50: 0.007, P90: 0.007, P99: 0.007}, percentiles([]time.Duration{7}))
}

// TestCompareWithOneUnavailable tests that Compare measures only the other subject if one lacks the
// path, tries the lacking one only once, and fails with ErrPath if both lack the path.
func TestCompareWithOneUnavailable(t *testing.T) {
	var log []string
	none := &PathError{"channel cma", errBroken}
	have := func() *fakeSubject { return &fakeSubject{name: "have", log: &log, figures: []float64{1, 2, 3}} }
	lack := &fakeSubject{name: "lack", log: &log, err: none}
	stick := &fakeYardstick{figures: []float64{2, 8, 3}}

	c, err := Compare(t.Context(), have(), lack, Spec{}, 3, stick)
	require.NoError(t, err)
	require.Len(t, c.A, 3)
	require.Empty(t, c.B)
	require.NoError(t, c.WhyA)
	require.EqualError(t, c.WhyB, "channel cma: it is broken")
	require.Zero(t, c.Ratio(Bandwidth))
	require.Equal(t, 0.5, Ratio(c.A, c.Yardsticks["ruler"], Bandwidth), "the median of 1/2, 2/8 and 3/3")
	require.Zero(t, Ratio(c.B, c.Yardsticks["ruler"], Bandwidth))
	require.Zero(t, Ratio(c.A, c.Yardsticks["tape"], Bandwidth))

	stick.figures = []float64{2, 8, 3}
	c, err = Compare(t.Context(), lack, have(), Spec{}, 3, stick)
	require.NoError(t, err)
	require.Empty(t, c.A)
	require.Len(t, c.B, 3)
	require.Equal(t, 0.5, Ratio(c.B, c.Yardsticks["ruler"], Bandwidth))

	_, err = Compare(t.Context(), lack, nil, Spec{}, 3)
	require.ErrorIs(t, err, ErrPath)
	_, err = Compare(t.Context(), lack, lack, Spec{}, 3)
	require.ErrorIs(t, err, ErrPath)
	require.Equal(t, []string{"have", "lack", "have", "have"}, log[:4], "it is not tried again")
}

// fakeYardstick returns predefined figures.
type fakeYardstick struct{ figures []float64 }

func (*fakeYardstick) Name() string { return "ruler" }

func (r *fakeYardstick) Measure(context.Context, Spec, *Result) (*Result, error) {
	f := r.figures[0]
	r.figures = r.figures[1:]
	return &Result{GBps: f}, nil
}
