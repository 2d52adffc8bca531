package ops

// Kernels computes on the devices of one kind.
type Kernels interface{}
