#define DDIP_KERNELS baseline
#include "ddip/comm/reduce_kernels.inc"
