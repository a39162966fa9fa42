// What a person sees of a training run: a bar that moves on a terminal, a line for each epoch everywhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace ddip::models::unet {

class Progress {
 public:
  enum class Form { silent, lines, bar };  // all ranks but the first are silent

  Progress(Form form, uint64_t samples_before, uint64_t samples_of_run);

  // Ask before computing what show() wants: it may cost a wait for the GPU.
  bool wants_update() const;
  struct Update {
    int64_t epoch = 0;  // from 1
    int64_t epochs = 0;
    double share = 0;  // of this epoch
    double loss = 0;
    double nonzero_accuracy = 0;
  };
  void show(const Update& update);
  // All ranks' samples that are done, and in what time: speed is that of training, without testing and saving.
  void add_samples(uint64_t samples, std::chrono::steady_clock::duration spent) {
    done_ += samples;
    spent_ += spent;
  }

  // Stands above the bar.
  void say(const std::string& line);
  double samples_per_second() const;

 private:
  using Clock = std::chrono::steady_clock;

  const Form form_;
  const uint64_t samples_before_;
  const uint64_t samples_of_run_;
  uint64_t done_ = 0;
  Clock::duration spent_{};
  Clock::time_point shown_{};
  bool drawn_ = false;
};

}  // namespace ddip::models::unet
