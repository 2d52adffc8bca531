// Package filetransfer moves safetensors files through a pipe, from one directory to
// another. It is what tpipe send and tpipe recv do; they add the command line.
//
// The sending end lists files with [Gather] and sends them with [Send]. The receiving end
// opens a directory as a [Store] and passes each accepted pipe to [Store.Receive].
//
//	list, err := filetransfer.Gather([]string{"weights"}, false)
//	err = filetransfer.Send(ctx, p, list, filetransfer.SendOptions{}, filetransfer.NoWatcher{})
//
//	store, err := filetransfer.OpenStore("/models", filetransfer.StoreOptions{})
//	err = store.Receive(ctx, p, filetransfer.NoWatcher{})
//
// # Guarantees
//
// A received file is a copy of the sender's file, byte for byte. The header is one payload, and
// the rest of the file is sent in chunks of 4 MiB, each one tensor of the pipe. Types that package
// tensor does not know are supported. The memory of a transfer is bounded, whatever the size of a
// tensor.
//
// A file gets its final name only when it is complete, its checksums are right and its bytes
// are flushed to disk. Until then it is a part file, .NAME.tpipe-part, in the same directory. Its
// bytes are written in order. It is kept, for a sender that resumes, if the sender, the receiver or
// the network was interrupted, and removed after other failures. A transfer that does not resume
// replaces it.
//
// With [SendOptions].Resume the receiver reports the CRC32C of each chunk that it has. The sender
// compares them with its own file and sends only the bytes after the equal chunks, and nothing of a
// file that is equal. A sender can thereby learn the CRC32C of a file in the directory if it knows
// the name and the size.
//
// [Send] succeeds only after the receiver has confirmed every file. Files that were completed
// before a transfer failed stay.
//
// # Checksums
//
// The sender computes the CRC32C of the header and of each chunk from the bytes that it has
// read. The receiver compares them with the bytes that it writes to the part file. A chunk that
// differs fails the transfer, and the part file is removed. Each end computes the CRC32C of the whole
// file from these, and both must be equal. If the receiver is killed, its part file may end with
// bytes that it has not compared; a sender that resumes compares them. Errors of a disk before the
// sender reads or after the receiver writes are not detected.
//
// # Trust
//
// The receiver does not trust the sender: names are checked and cannot leave the directory
// ([os.Root]), a header must describe exactly the bytes of the offer, and [StoreOptions] bound
// memory and disk. A violation of the protocol, which protocol.go describes, fails that
// transfer with an error and no other.
package filetransfer
