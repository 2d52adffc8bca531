/* Lets package cu v0.9.6 be compiled with the cuda.h of CUDA 13. Its folder must come before that
   of CUDA in the include path:

     CGO_CFLAGS="-I$(go list -m -f '{{.Dir}}' github.com/tensorpipe-go/tensorpipe/cudaipc/gorgonia)/compat13"

   The package calls five functions with the parameters that they had until CUDA 12. The header of
   CUDA 13 maps their names to versions with other parameters, but the driver still has the older
   ones, which are declared here. With an older cuda.h this file changes nothing. */
#include_next <cuda.h>

#if CUDA_VERSION >= 13000 && !defined TENSORPIPE_COMPAT13
#define TENSORPIPE_COMPAT13

#undef cuCtxCreate
#define cuCtxCreate cuCtxCreate_v2
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *, unsigned int, CUdevice);

#undef cuGraphAddDependencies
CUresult CUDAAPI cuGraphAddDependencies(CUgraph, const CUgraphNode *, const CUgraphNode *, size_t);

#undef cuGraphGetEdges
CUresult CUDAAPI cuGraphGetEdges(CUgraph, CUgraphNode *, CUgraphNode *, size_t *);

#undef cuMemAdvise
CUresult CUDAAPI cuMemAdvise(CUdeviceptr, size_t, CUmem_advise, CUdevice);

#undef cuMemPrefetchAsync
CUresult CUDAAPI cuMemPrefetchAsync(CUdeviceptr, size_t, CUdevice, CUstream);

#endif
