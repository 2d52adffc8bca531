// Package train trains a network on handwritten digits in three processes: the worker "trainer" has
// the data, "stage0" and "stage1" have a layer each. The network has 64 inputs, hidden units and 10
// outputs; the loss is the cross entropy.
//
// A stage keeps its layer, and gives references to the layer and its parameters to the trainer, which
// never has the parameters. In each step the trainer
//
//   - calls Forward of the layer on stage0 and Loss of the layer on stage1,
//   - computes the gradients by a pass through both workers,
//   - has an optimizer on each stage change the parameters there.
//
// A step begins when the last one has ended.
//
// With a Device all tensors are on it: the parameters and the gradients of the stages, the images and
// digits of the trainer, and those between them, which device maps send from device to device. Only the
// loss, the digits that the network finds, and parameters for a file are copied to the host.
package train
