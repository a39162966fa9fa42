// Compiled with AVX2, FMA and F16C (CMakeLists.txt); reduce.cpp asks the processor before it comes here.
#define DDIP_KERNELS avx2
#include "ddip/comm/reduce_kernels.inc"
