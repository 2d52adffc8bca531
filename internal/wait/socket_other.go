//go:build !linux

package wait

// Reader reads from a socket. On this system it never spins.
type Reader struct{ socket Socket }

// NewReader returns a Reader of s, which the caller keeps. The Reader never spins on this system.
// The error is nil.
func NewReader(s Socket, _ Config) (*Reader, error) { return &Reader{s}, nil }

// Read calls the Read of the socket with p and returns its results.
func (r *Reader) Read(p []byte) (int, error) { return r.socket.Read(p) }

// StreamReader reads from a socket.
type StreamReader struct{ socket Socket }

// NewStreamReader returns a StreamReader of s, which the caller keeps. The error is nil.
func NewStreamReader(s Socket) (*StreamReader, error) { return &StreamReader{s}, nil }

// Read calls the Read of the socket with p and returns its results.
func (r *StreamReader) Read(p []byte) (int, error) { return r.socket.Read(p) }

// ReadBulk does what Read does.
func (r *StreamReader) ReadBulk(p []byte) (int, error) { return r.socket.Read(p) }

// Writer writes to a socket without blocking. On this system TryWrite writes nothing.
type Writer struct{}

// NewWriter returns a Writer whose TryWrite writes nothing, as no Writer of this system does. The
// error is nil.
func NewWriter(Socket) (*Writer, error) { return &Writer{}, nil }

// TryWrite writes nothing and returns 0 and nil, so that the caller uses a blocking write.
func (*Writer) TryWrite(...[]byte) (int, error) { return 0, nil }
