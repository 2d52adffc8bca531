// Package ferry moves safetensors files through a pipe, from one directory to
// another. It is what tpipe send and tpipe recv do; they add the command line.
//
// The sending end lists files, see [Gather], and hands the list to [Send]; the
// receiving end owns a directory, a [Store], and hands it each pipe that comes.
//
//	cargo, err := ferry.Gather([]string{"weights"}, false)
//	err = ferry.Send(ctx, p, cargo, ferry.Nobody{})
//
//	store, err := ferry.OpenStore("/models", ferry.StoreOptions{})
//	err = store.Receive(ctx, p, ferry.Nobody{})
//
// # What is promised
//
// A file that was placed is the sender's file, byte for byte: the header
// travels as it is, and the tensors, which cover the rest without a hole, each
// as one tensor of the pipe. Types that package tensor does not know travel as
// well.
//
// A file stands under its name only when it is complete, its checksums were
// right and its bytes were flushed to disk. Until then it is called
// .NAME.tpipe-part, beside its final place. That is removed when the transfer
// fails; what a killed receiver left is replaced by the next transfer of the
// same name.
//
// The sender's end of a transfer is good only when the receiver has said of
// each file that it is in place. Files that were placed before a transfer
// failed stay.
//
// # What the checksums cover
//
// CRC32C of the header and of each tensor is computed over the bytes that the
// sender has read from its file, and compared with what lies in the receiver's
// memory before that is written to disk. Out of these each end computes, for
// itself, the CRC32C of the whole file, and both must agree. What a disk does to
// bytes before they are read, or after they were written, no checksum here sees.
//
// # Trust
//
// The receiver believes nothing: names are checked and cannot leave the
// directory ([os.Root]), a header must describe exactly the bytes that were
// offered, memory and disk are bounded by [StoreOptions], and what does not fit
// the protocol, which protocol.go describes, ends that transfer, with an error,
// and no other.
package ferry
