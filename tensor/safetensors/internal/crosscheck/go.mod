module github.com/tensorpipe-go/tensorpipe/tensor/safetensors/internal/crosscheck

go 1.26.0

require (
	github.com/maruel/safetensors v1.2.0
	github.com/stretchr/testify v1.12.1
	github.com/tensorpipe-go/tensorpipe v0.0.0
)

require (
	github.com/edsrzf/mmap-go v1.2.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace github.com/tensorpipe-go/tensorpipe => ../../../..
