package wire

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func markedBrochure() *Brochure {
	b := &Brochure{TransportDomainDescriptors: map[string]string{}}
	b.Mark(Marker{0, 1, 1})
	return b
}

func TestWishesTravelBehindTheMarker(t *testing.T) {
	w := Wishes{Transports: []string{"uv", "shm"}, Channels: []string{"mpt_uv"}, NeedsChannel: true}
	b := markedBrochure()
	b.AddProbing(Probing{Refused: map[string]string{"cma": "no"}})
	b.AddWishes(w)
	require.Equal(t, "0-1+1 refused:cma=6e6f prefer-transport:uv prefer-transport:shm prefer-channel:mpt_uv needs-channel",
		b.TransportDomainDescriptors[MarkerName])
	decoded, err := DecodeBrochure(b.Append(nil), Limits{})
	require.NoError(t, err)
	require.Equal(t, w, decoded.Wishes())
	require.Equal(t, map[string]string{"cma": "no"}, decoded.Probing().Refused)

	plain := markedBrochure()
	plain.AddWishes(Wishes{})
	require.Equal(t, "0-1+1", plain.TransportDomainDescriptors[MarkerName])
	var unmarked Brochure
	unmarked.AddWishes(w)
	require.Empty(t, unmarked.Wishes())
}

func TestWishesAreBounded(t *testing.T) {
	long := strings.Repeat("x", 65)
	b := markedBrochure()
	b.AddWishes(Wishes{Channels: []string{"", "a b", "a=b", long, "fits", "fits"}})
	require.Equal(t, Wishes{Channels: []string{"fits"}}, b.Wishes())

	var many []string
	for i := range 100 {
		many = append(many, fmt.Sprint("n", i))
	}
	b = markedBrochure()
	b.AddWishes(Wishes{Transports: many})
	require.Equal(t, many[:16], b.Wishes().Transports)
	for _, name := range append(many, long, "") {
		b.TransportDomainDescriptors[MarkerName] += " prefer-channel:" + name
	}
	require.Equal(t, many[:16], b.Wishes().Channels)
}
