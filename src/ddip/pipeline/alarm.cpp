#include "ddip/pipeline/alarm.h"

#include "ddip/base/error.h"

namespace ddip::pipeline {
namespace {

constexpr int64_t kText = 1024;

}  // namespace

Alarms::Alarms(std::shared_ptr<tensors::Communicator> ranks, const std::vector<int>& neighbours, int tag)
    : ranks_(std::move(ranks)), tag_(tag), sends_(*ranks_) {
  for (int neighbour : neighbours) {
    receives_.try_emplace(neighbour, *ranks_, Completions::AtTheEnd::abort);  // usually none is ever raised
    post(neighbour);
  }
}

void Alarms::post(int neighbour) {
  at::Tensor text = at::zeros({kText}, at::kByte);
  Completion completion = receives_.at(neighbour).watch(ranks_->start_receive(text, neighbour, tag_));
  posted_[neighbour] = Posted{completion, text};
}

void Alarms::check() {
  for (auto& [neighbour, posted] : posted_) {
    if (!posted->completion.is_done()) continue;
    try {
      posted->completion.wait({});
    } catch (const TimedOut&) {
      post(neighbour);  // a long time without any alarm
      continue;
    }
    throw StageFailed(reinterpret_cast<const char*>(posted->text.const_data_ptr<uint8_t>()));
  }
}

void Alarms::raise(const std::string& why) {
  for (const auto& [neighbour, posted] : posted_) {
    at::Tensor text = at::zeros({kText}, at::kByte);
    why.copy(reinterpret_cast<char*>(text.mutable_data_ptr<uint8_t>()), kText - 1);
    Completion completion = sends_.watch(ranks_->start_send(text, neighbour, tag_));
    raised_.push_back({completion, text});
  }
}

void Alarms::settle(const Poll& poll) {
  for (const Posted& one : raised_) one.completion.wait(poll);
  raised_.clear();
  for (auto& [neighbour, posted] : posted_) {
    if (posted->completion.is_done()) {
      try {
        posted->completion.wait(poll);
        post(neighbour);
        continue;
      } catch (const TimedOut&) {
        post(neighbour);  // a long time without any alarm, and nobody has looked since: this one is still to come
      }
    }
    posted->completion.wait(poll);
    post(neighbour);
  }
}

}  // namespace ddip::pipeline
