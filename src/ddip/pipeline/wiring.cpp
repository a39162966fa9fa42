#include "ddip/pipeline/wiring.h"

namespace ddip::pipeline {

Wiring::Wiring(const Arrangement& arrangement, int norm_frames)
    : channels_(arrangement.edges.size() * 2),
      stages_(arrangement.rank_of_stage.size()),
      replicas_(static_cast<size_t>(arrangement.replicas)),
      width_(static_cast<size_t>(arrangement.width)) {
  auto place = [&](int stage, int replica) {
    return replica * arrangement.width + arrangement.rank_of_stage.at(static_cast<size_t>(stage));
  };
  for (int replica = 0; replica < arrangement.replicas; ++replica) {
    for (size_t edge = 0; edge < arrangement.edges.size(); ++edge) {
      int from = place(arrangement.edges[edge].from, replica), to = place(arrangement.edges[edge].to, replica);
      for (bool gradient : {false, true}) {
        size_t channel = schedule::channel_of(static_cast<int>(edge), gradient);
        links_.push_back({gradient ? to : from, gradient ? from : to, arrangement.frames.at(channel)});
      }
    }
  }
  for (size_t stage = 0; stage < stages_; ++stage) {
    for (int replica = 0; replica < arrangement.replicas; ++replica)
      links_.push_back({place(static_cast<int>(stage), replica),
                        place(static_cast<int>(stage), (replica + 1) % arrangement.replicas)});
  }
  if (norm_frames == 0) return;
  for (int replica = 0; replica < arrangement.replicas; ++replica) {
    for (int from = 0; from < arrangement.width; ++from) {
      for (int to = 0; to < arrangement.width; ++to)
        links_.push_back({replica * arrangement.width + from, replica * arrangement.width + to, norm_frames});
    }
  }
}

size_t Wiring::edge(int replica, size_t channel) const { return static_cast<size_t>(replica) * channels_ + channel; }

size_t Wiring::sum(int stage, int replica) const {
  return replicas_ * channels_ + static_cast<size_t>(stage) * replicas_ + static_cast<size_t>(replica);
}

size_t Wiring::sum_to(int stage, int replica) const {
  return sum(stage, replica == 0 ? static_cast<int>(replicas_) - 1 : replica - 1);
}

size_t Wiring::norm(int replica, int from, int to) const {
  return replicas_ * (channels_ + stages_) +
         (static_cast<size_t>(replica) * width_ + static_cast<size_t>(from)) * width_ + static_cast<size_t>(to);
}

}  // namespace ddip::pipeline
