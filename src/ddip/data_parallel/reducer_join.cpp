// Uneven inputs: who has no data any more takes part with nothing until all have ended.
#include <algorithm>

#include "ddip/base/error.h"
#include "ddip/data_parallel/reducer.h"

namespace ddip::data_parallel {

void Reducer::begin_join(bool divide_by_all) {
  joining_ = true;
  divide_by_all_ = divide_by_all;
  newest_ = 0;
}

std::vector<Reducer::Doing> Reducer::announce(Doing doing) {
  at::Tensor mine = at::full({1}, static_cast<int>(doing), at::kInt), all;
  if (!kinds_.empty()) mine = mine.to(kinds_[0].device());
  thread_.run([&] { all = ranks_->all_gather(mine).cpu().view({-1}); });
  std::vector<Doing> result;
  Doing common = Doing::nothing;
  for (int rank = 0; rank < ranks_->world(); ++rank) {
    Doing theirs = static_cast<Doing>(all[rank].item<int>());
    result.push_back(theirs);
    if (theirs == Doing::nothing) continue;
    if (common == Doing::nothing) newest_ = rank;
    if (common != Doing::nothing && common != theirs)
      throw ConfigError("join: one rank is in forward, another in backward; all must do the same number of each");
    common = theirs;
  }
  return result;
}

int Reducer::announce_forward() {
  announce(Doing::forward);
  return newest_;
}

int Reducer::end_join(const std::function<void(int root)>& on_forward) {
  struct Ended {  // also by an error
    bool& joining;
    ~Ended() { joining = false; }
  } ended{joining_};
  for (;;) {
    std::vector<Doing> all = announce(Doing::nothing);
    auto busy = std::find_if(all.begin(), all.end(), [](Doing doing) { return doing != Doing::nothing; });
    if (busy == all.end()) break;
    if (*busy == Doing::forward)
      on_forward(newest_);
    else
      take_part_in_backward(static_cast<int>(std::count(all.begin(), all.end(), Doing::backward)));
  }
  return newest_;
}

// With nothing of its own, in everything the others do in finish().
void Reducer::take_part_in_backward(int with_data) {
  // Its own gradients, if it kept some, are of a step that is over.
  drop_gradients();
  taking_part_ = true;
  begin_backward();
  if (!divide_by_all_) rescale_ = static_cast<double>(ranks_->world()) / with_data;
  try {
    finish();
  } catch (...) {
    taking_part_ = false;
    throw;
  }
  taking_part_ = false;
  drop_gradients();
}

}  // namespace ddip::data_parallel
