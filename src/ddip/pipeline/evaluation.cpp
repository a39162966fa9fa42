#include "ddip/pipeline/evaluation.h"

namespace ddip::pipeline {

using schedule::Action;
using schedule::Direction;
using schedule::Kind;

std::vector<Action> forwards_only(const std::vector<schedule::Edge>& edges, const std::vector<int>& rank_of_stage,
                                  int rank, int64_t micro_batches) {
  std::vector<Action> actions;
  auto home = [&](int stage) { return rank_of_stage.at(static_cast<size_t>(stage)); };
  for (int64_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
    for (int stage = 0; stage < static_cast<int>(rank_of_stage.size()); ++stage) {
      if (home(stage) != rank) continue;
      auto add = [&](Kind kind, int edge) {
        Direction direction = kind == Kind::forward ? Direction::none : Direction::activation;
        actions.push_back(
            {.kind = kind, .direction = direction, .stage = stage, .micro_batch = micro_batch, .edge = edge});
      };
      for (size_t edge = 0; edge < edges.size(); ++edge)
        if (edges[edge].to == stage && home(edges[edge].from) != rank) add(Kind::receive, static_cast<int>(edge));
      add(Kind::forward, -1);
      for (size_t edge = 0; edge < edges.size(); ++edge)
        if (edges[edge].from == stage && home(edges[edge].to) != rank) add(Kind::send, static_cast<int>(edge));
    }
  }
  return actions;
}

}  // namespace ddip::pipeline
