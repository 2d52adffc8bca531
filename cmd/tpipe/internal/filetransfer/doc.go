// Package filetransfer moves safetensors files through a pipe, from one directory to
// another. It is what tpipe send and tpipe recv do; they add the command line.
//
// The sending end lists files with [Gather] and sends them with [Send]. The receiving end
// opens a directory as a [Store] and passes each accepted pipe to [Store.Receive].
//
//	list, err := filetransfer.Gather([]string{"weights"}, false)
//	err = filetransfer.Send(ctx, p, list, filetransfer.NoWatcher{})
//
//	store, err := filetransfer.OpenStore("/models", filetransfer.StoreOptions{})
//	err = store.Receive(ctx, p, filetransfer.NoWatcher{})
//
// # Guarantees
//
// A received file is a copy of the sender's file, byte for byte. The header is one payload,
// and each tensor is one tensor of the pipe; together they cover the file without a gap. Types
// that package tensor does not know are supported.
//
// A file gets its final name only when it is complete, its checksums are right and its bytes
// are flushed to disk. Until then it is a part file, .NAME.tpipe-part, in the same directory.
// The part file is removed if the transfer fails. A part file of a receiver that was killed is
// replaced by the next transfer of the same name.
//
// [Send] succeeds only after the receiver has confirmed every file. Files that were completed
// before a transfer failed stay.
//
// # Checksums
//
// The sender computes the CRC32C of the header and of each tensor from the bytes that it has
// read. The receiver compares them with its memory before it writes to disk. Each end computes
// the CRC32C of the whole file from these, and both must be equal. Errors of a disk before the
// sender reads or after the receiver writes are not detected.
//
// # Trust
//
// The receiver does not trust the sender: names are checked and cannot leave the directory
// ([os.Root]), a header must describe exactly the bytes of the offer, and [StoreOptions] bound
// memory and disk. A violation of the protocol, which protocol.go describes, fails that
// transfer with an error and no other.
package filetransfer
