// Copies of one model on all ranks: the same shapes, and the same values as one of them has.
#pragma once

#include <string>
#include <vector>

#include "ddip/tensors/communicator.h"

namespace ddip::data_parallel {

// Throws ConfigError on all ranks, naming the first parameter that differs.
void require_same_shapes(tensors::Communicator& ranks, const std::vector<std::string>& names,
                         const std::vector<at::Tensor>& tensors);

// Throws ConfigError on all ranks, with the first parameter that some of them train and others do not: its gradient
// would be a mean with nothing, and only who trains it would take it.
void require_same_frozen(tensors::Communicator& ranks, const std::vector<std::string>& names,
                         const std::vector<at::Tensor>& tensors);

// Throws ConfigError on all ranks if one has something to complain about; each its own complaint, else whose it is.
void require_no_complaint(tensors::Communicator& ranks, const std::string& complaint,
                          const std::vector<at::Tensor>& tensors);

// Whether it is so on any of them.
bool on_any(tensors::Communicator& ranks, bool here, const std::vector<at::Tensor>& tensors);

// Every tensor becomes what it is on `root`, in one message for each device. One that is that already is not written
// to: a graph may hold it.
void broadcast_all(tensors::Communicator& ranks, const std::vector<at::Tensor>& tensors, int root);

// For each tensor, whether it is the same bits on all ranks; the same answer everywhere.
std::vector<bool> are_equal(tensors::Communicator& ranks, const std::vector<at::Tensor>& tensors);

}  // namespace ddip::data_parallel
