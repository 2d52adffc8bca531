package cudaipc

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/onesided"
)

// FuzzDecodeIPC decodes arbitrary bytes as a frame of the peer: the error matches channel.ErrProtocol, and
// a frame that is accepted has a size that its kind has.
func FuzzDecodeIPC(f *testing.F) {
	var p ipcEnd
	for kind := onesided.Describe; kind <= onesided.Acknowledged; kind++ {
		frame := onesided.Frame{Kind: kind, ID: 7}
		if kind == onesided.Describe {
			frame.Source = &ipcSource{size: 100, offset: 4096, event: &sharedEvent{}}
		}
		f.Add(p.Append(nil, frame))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) == 0 {
			return // the Engine passes no empty text
		}
		frame, err := p.Decode(0, text)
		if err != nil {
			require.ErrorIs(t, err, channel.ErrProtocol)
			return
		}
		want := ipcHead
		if frame.Kind == onesided.Describe {
			want = ipcDescription
			require.NotNil(t, frame.Remote.Memory)
		}
		require.Len(t, text, want)
	})
}
