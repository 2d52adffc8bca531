package bench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
)

// TestAnyTracerReachesTheCatalog tests that Catalog.profile passes Spec.AllowAnyTracer to the
// catalog.
func TestAnyTracerReachesTheCatalog(t *testing.T) {
	for _, allow := range []bool{false, true} {
		var got Tuning
		_, err := Catalog(func(t Tuning) tensorpipe.Profile { got = t; return defaultCatalog(t) }).profile(Spec{AllowAnyTracer: allow})
		require.NoError(t, err)
		require.Equal(t, allow, got.AllowAnyTracer)
	}
}

// TestLanesReachTheChannel tests that the channel mpt_uv of the default catalog has as many lanes as
// Tuning.Lanes: it rejects a number that it cannot have.
func TestLanesReachTheChannel(t *testing.T) {
	for lanes, want := range map[int]string{4: "", 129: "129 lanes"} {
		for _, e := range defaultCatalog(Tuning{Lanes: lanes}).Channels {
			if err := e.Factory.Viable(); e.Name == mpt.UVName && want != "" {
				require.ErrorContains(t, err, want)
			} else if e.Name == mpt.UVName {
				require.NoError(t, err)
			}
		}
	}
}
