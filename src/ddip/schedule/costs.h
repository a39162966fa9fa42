// What things take, in any unit of time: profiled, or 1 as in a textbook.
#pragma once

#include <vector>

namespace ddip::schedule {

struct StageCost {
  double forward = 1;
  double backward = 1;         // of the inputs' gradients
  double weight_gradient = 1;  // of the weights'; a backward that is not split takes both
  double step = 0;
  double predict = 0;

  double micro_batch() const { return forward + backward + weight_gradient; }
};

struct Costs {
  std::vector<StageCost> stages;  // empty: as above for all
  std::vector<double> links;      // per edge, for one message either way; empty: nothing

  StageCost stage(int index) const { return stages.empty() ? StageCost{} : stages.at(static_cast<size_t>(index)); }
  double link(int edge) const { return links.empty() ? 0 : links.at(static_cast<size_t>(edge)); }
};

}  // namespace ddip::schedule
