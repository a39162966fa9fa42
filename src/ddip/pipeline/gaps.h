// How far a stage's weights moved while its micro-batches were on their way, and whether predictions came nearer to
// where they went. Only where somebody asks: it copies the weights of every forward until its backward, and reads them
// anew there.
#pragma once

#include <map>

#include "ddip/pipeline/versions.h"

namespace ddip::pipeline {

class Gaps {
 public:
  // Over a run's micro-batches.
  struct Means {
    double moved = 0;  // ‖w_B − w_F‖: from the true version that the forward read to the newest at its backward
    double error = 0;  // ‖ŵ − w_B‖ / ‖w_F − w_B‖, of those whose weights moved: below 1 predictions help; 1 without one
  };

  void begin();  // of a run
  // Right before the forward, when `weights` show what it will use.
  void forward(int64_t micro_batch, const Used& used, const Weights& weights);
  // Before its backward is shown anything.
  void backward(int64_t micro_batch, const Weights& weights);

  void end();  // of the run: the means stay

  Means means() const;

 private:
  struct Flight {
    at::Tensor read, used;  // the true version; what was made of it
  };
  std::map<int64_t, Flight> flights_;  // by micro-batch
  Flight last_;                        // forwards that read the same share it
  int64_t last_label_ = -1;
  int64_t count_ = 0, that_moved_ = 0;
  double moved_ = 0, error_ = 0;  // sums
};

}  // namespace ddip::pipeline
