package transport

// Whole is a power that some Conns have besides: to know what the peer can take in
// one piece only. That is how C++ peers read the objects of TensorPipe's protocol,
// such as the description of a message, and what a larger one does to them is
// their end. The bytes of payloads and tensors they take as they come.
type Whole interface {
	// LargestWhole is how many bytes a frame may have that the peer must see whole
	// before it takes any of it; 0 where there is no such bound.
	LargestWhole() int
}
