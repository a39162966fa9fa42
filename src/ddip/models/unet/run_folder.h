// The folder of a training run: settings.json, checkpoints/, log.jsonl with one line for each epoch, and the baselines.
#pragma once

#include <optional>

#include "ddip/base/fd.h"
#include "ddip/checkpoint/store.h"
#include "ddip/models/unet/settings.h"

namespace ddip::models::unet {

class RunFolder {
 public:
  // A new run: the folder is made, or must be empty. Throws ConfigError.
  static RunFolder create(const std::filesystem::path& folder, const Settings& settings);
  // One that is there. Throws ConfigError, saying what is missing.
  static RunFolder open(const std::filesystem::path& folder);

  const Settings& settings() const { return settings_; }
  checkpoint::Store& store() { return store_; }
  // The best checkpoint; the last one where none was called the best. Throws ConfigError where there is none yet.
  checkpoint::Manifest best() const;
  std::filesystem::path baselines() const { return folder_ / "baselines.safetensors"; }
  const std::filesystem::path& path() const { return folder_; }

  // Nobody else trains in it as long as this object lives. Throws ConfigError if somebody does.
  void lock();

  // One line of JSON. A line that cannot be written is not worth a training run: returns false.
  bool log(const std::string& line) const;

 private:
  RunFolder(std::filesystem::path folder, Settings settings)
      : folder_(std::move(folder)), settings_(std::move(settings)), store_(folder_ / "checkpoints") {}

  std::filesystem::path folder_;
  Settings settings_;
  checkpoint::Store store_;
  Fd lock_;
};

}  // namespace ddip::models::unet
