// What somebody asks of a training run; kept in its folder.
#pragma once

#include <filesystem>
#include <string>

namespace ddip::models::unet {

struct Settings {
  std::filesystem::path data;
  int64_t epochs = 10;
  int64_t batch = 8;  // of each rank
  int64_t width = 64;
  int64_t depth = 4;
  double lr = 1e-3;
  uint64_t seed = 0;
  std::string precision = "fp32";  // bf16
  std::string compress = "none";
  std::string device = "auto";  // cpu, cuda
  double hold_out = 0.1;        // share of the events, the last ones, that is never trained on
  int64_t patience = 0;         // epochs without a better accuracy after which training stops; 0: never
  int64_t readers = 2;          // threads that read ahead
  uint64_t events = 0;          // in `data` when the run began: other events would make its results mean nothing

  std::string json() const;
  // What json() wrote. Throws ConfigError.
  static Settings from_json(const std::string& text);

  // Of the first setting that is different, in words; empty if none is. `data` is compared as a place.
  std::string difference(const Settings& other) const;

  bool operator==(const Settings&) const = default;
};

}  // namespace ddip::models::unet
