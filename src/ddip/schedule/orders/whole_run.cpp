#include "ddip/schedule/orders/whole_run.h"

#include "ddip/schedule/orders/merge.h"

namespace ddip::schedule {
namespace {

void append_stage(Order& order, const Request& request, int stage, const Segment& segment) {
  const int window = request.window[static_cast<size_t>(stage)];
  if (request.schedule == "seq") return append_seq(order, stage, segment);
  if (request.schedule == "gpipe") return append_gpipe(order, stage, segment);
  if (splits_backward(request.schedule))
    return append_zb1(order, stage, segment, window, request.window.front() - window);
  append_1f1b(order, stage, segment, window);
}

// A step as soon as a stage has the gradients for it.
class Stepper {
 public:
  explicit Stepper(const Request& request)
      : finishing_(splits_backward(request.schedule) ? Kind::weight_gradient : Kind::backward),
        ends_(step_ends(request)),
        done_(static_cast<size_t>(request.stages), 0),
        steps_(done_.size(), 0) {}

  Order with_steps(const Order& order) {
    Order stepped;
    for (const Work& work : order) {
      stepped.push_back(work);
      const auto stage = static_cast<size_t>(work.stage);
      if (work.kind != finishing_ || ++done_[stage] < ends_[steps_[stage]]) continue;
      stepped.push_back({Kind::step, work.stage, ends_[steps_[stage]++] - 1});
    }
    return stepped;
  }

 private:
  const Kind finishing_;
  const std::vector<int64_t> ends_;
  std::vector<int64_t> done_;
  std::vector<size_t> steps_;
};

bool ordered_by_rank(const Request& request, const std::vector<Segment>& part) {
  if (request.schedule == "interleaved") return true;
  if (request.schedule != "zbv") return false;
  for (const Segment& segment : part)
    if (!zbv_fits(request, segment)) return false;
  return true;
}

std::vector<Order> ranks_of(const Request& request, const std::vector<Segment>& part, Stepper& stepper) {
  if (ordered_by_rank(request, part)) {
    std::vector<Order> ranks(static_cast<size_t>(request.ranks()));
    for (int rank = 0; rank < request.ranks(); ++rank) {
      Order& order = ranks[static_cast<size_t>(rank)];
      for (const Segment& segment : part)
        request.schedule == "zbv" ? append_zbv(order, request, rank, segment)
                                  : append_interleaved(order, request, rank, segment);
      order = stepper.with_steps(order);
    }
    return ranks;
  }
  std::vector<Order> stages(static_cast<size_t>(request.stages));
  for (int stage = 0; stage < request.stages; ++stage) {
    Order& order = stages[static_cast<size_t>(stage)];
    for (const Segment& segment : part) append_stage(order, request, stage, segment);
    order = stepper.with_steps(order);
  }
  return merge(request, stages);
}

}  // namespace

std::vector<std::vector<Order>> whole_run(const Request& request) {
  std::vector<std::vector<Order>> parts;
  std::vector<Segment> part;
  Stepper stepper(request);
  for (const Segment& segment : segments(request)) {
    part.push_back(segment);
    if (!segment.drains) continue;
    parts.push_back(ranks_of(request, part, stepper));
    part.clear();
  }
  return parts;
}

}  // namespace ddip::schedule
