// Every ordered channel of a pipeline, numbered alike on all ranks: between stages, between the replicas of a stage,
// and for the norms of gradients.
#pragma once

#include <vector>

#include "ddip/schedule/plan.h"

namespace ddip::pipeline {

// Where the stages are. Ranks are those of one replica; replica r has the ranks r·width … (r+1)·width−1 of the group.
struct Arrangement {
  std::vector<schedule::Edge> edges;
  std::vector<int> rank_of_stage;
  std::vector<int> frames;  // by channel of the edges: what may be under way
  int width = 1;
  int replicas = 1;
};

struct Link {
  int from = 0, to = 0;  // ranks of the group; equal: it is not needed
  int frames = 2;
};

class Wiring {
 public:
  // `norm_frames`: 0 if no norms are exchanged.
  Wiring(const Arrangement& arrangement, int norm_frames);

  const std::vector<Link>& links() const { return links_; }
  size_t edge(int replica, size_t channel) const;
  size_t sum(int stage, int replica) const;          // from this replica to the next one
  size_t sum_to(int stage, int replica) const;       // from the one before to this
  size_t norm(int replica, int from, int to) const;  // ranks of the replica

 private:
  const size_t channels_, stages_, replicas_, width_;
  std::vector<Link> links_;
};

}  // namespace ddip::pipeline
