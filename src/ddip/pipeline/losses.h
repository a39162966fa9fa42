// The losses of a run, one of each micro-batch: numbers, not tensors, of which each would take half a KiB. Those of a
// GPU stay there until the run is over, many in one tensor: asking for one would wait for all that is under way.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace ddip::pipeline {

class Losses {
 public:
  struct One {
    int64_t micro_batch = 0;
    double sum = 0;
    double count = 0;  // what it is a sum over
  };
  // Several together, without waiting for a GPU.
  struct Newest {
    int64_t micro_batch = -1;  // the last one; -1: there are none
    at::Tensor sum;
    double count = 0;
  };

  void add(int64_t micro_batch, const at::Tensor& sum, double count);
  size_t size() const { return micro_batches_.size(); }
  std::vector<One> all() const;
  Newest newest(size_t most) const;

 private:
  std::vector<int64_t> micro_batches_;
  std::vector<double> counts_;
  std::vector<double> sums_;         // on the CPU
  std::vector<at::Tensor> blocks_;   // elsewhere: of kBlock micro-batches each
  std::vector<at::Tensor> waiting_;  // for the next block
};

}  // namespace ddip::pipeline
