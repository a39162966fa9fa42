// All that a C++ program needs to train on many ranks: link ddip::ddip. (A program that only drives groups, without
// torch, includes ddip/client/client.h and links ddip::client.)
#pragma once

#include "ddip/base/error.h"
#include "ddip/data_parallel/data_parallel.h"
#include "ddip/pipeline/pipeline.h"
#include "ddip/tensors/communicator.h"
#include "ddip/tensors/context.h"
