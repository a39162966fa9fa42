#include "ddip/models/unet/progress.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>

namespace ddip::models::unet {
namespace {

constexpr std::chrono::milliseconds kBetweenUpdates{200};
constexpr int kBarWidth = 24;

std::string bar(double share) {
  const int full = static_cast<int>(share * kBarWidth);
  std::string text;
  for (int place = 0; place < kBarWidth; ++place) text += place < full ? "━" : "─";
  return text;
}

}  // namespace

Progress::Progress(Form form, uint64_t samples_before, uint64_t samples_of_run)
    : form_(form), samples_before_(samples_before), samples_of_run_(samples_of_run) {}

bool Progress::wants_update() const { return form_ == Form::bar && Clock::now() - shown_ >= kBetweenUpdates; }

double Progress::samples_per_second() const {
  const double seconds = std::chrono::duration<double>(spent_).count();
  return static_cast<double>(done_) / std::max(seconds, 1e-9);
}

void Progress::show(const Update& update) {
  if (form_ != Form::bar) return;
  shown_ = Clock::now();
  drawn_ = true;
  const uint64_t finished = samples_before_ + done_;
  const uint64_t left = samples_of_run_ > finished ? samples_of_run_ - finished : 0;
  const std::chrono::seconds eta(
      static_cast<int64_t>(static_cast<double>(left) / std::max(samples_per_second(), 1e-9)));
  fmt::print(
      stderr,
      "\r\033[Kepoch {}/{} {} {:3.0f}%  loss {:.4f}  non-zero accuracy {:.3f}  {:.1f} samples/s  {:%H:%M:%S} left",
      update.epoch, update.epochs, bar(update.share), 100 * update.share, update.loss, update.nonzero_accuracy,
      samples_per_second(), eta);
  std::fflush(stderr);
}

void Progress::say(const std::string& line) {
  if (form_ == Form::silent) return;
  if (drawn_) fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
  drawn_ = false;
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

}  // namespace ddip::models::unet
